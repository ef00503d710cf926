package instanceclass

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of InstanceClass objects.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*genericstore.REST, error) {
	strategy := NewStrategy(typer)
	main, _, err := genericstore.New(genericstore.Kind{
		Resource:   instance.Resource("instanceclasses"),
		Singular:   "instanceclass",
		ShortNames: []string{"ic"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &instance.InstanceClass{} },
		NewList:    func() runtime.Object { return &instance.InstanceClassList{} },
		Strategy:   strategy,
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, err
}
