package instanceclass

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/stores"
)

// NewStorage returns the storage of InstanceClass objects.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*stores.REST, error) {
	strategy := NewStrategy(typer)
	main, _, err := stores.New(stores.Kind{
		Resource:   instance.Resource("instanceclasses"),
		Singular:   "instanceclass",
		ShortNames: []string{"ic"},
		Category:   stores.Tenants,
		New:        func() runtime.Object { return &instance.InstanceClass{} },
		NewList:    func() runtime.Object { return &instance.InstanceClassList{} },
		Strategy:   strategy,
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, err
}
