package macnodeclass

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of MacNodeClass objects and of their status.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*genericstore.REST, *genericstore.StatusREST, error) {
	strategy := NewStrategy(typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:   rack.Resource("macnodeclasses"),
		Singular:   "macnodeclass",
		ShortNames: []string{"mnc"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &rack.MacNodeClass{} },
		NewList:    func() runtime.Object { return &rack.MacNodeClassList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, status, err
}
