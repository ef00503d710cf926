package rackconfig

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of RackConfig objects.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*genericstore.REST, error) {
	strategy := NewStrategy(typer)
	main, _, err := genericstore.New(genericstore.Kind{
		Resource: config.Resource("rackconfigs"),
		Singular: "rackconfig",
		Category: genericstore.Operators,
		New:      func() runtime.Object { return &config.RackConfig{} },
		NewList:  func() runtime.Object { return &config.RackConfigList{} },
		Strategy: strategy,
		Attrs:    GetAttrs,
		Table:    NewTableConvertor(clock),
	}, getter, recorder)
	return main, err
}
