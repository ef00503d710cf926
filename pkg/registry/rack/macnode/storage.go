package macnode

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/stores"
)

// NewStorage returns the storage of MacNode objects and of their status.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*stores.REST, *stores.StatusREST, error) {
	strategy := NewStrategy(typer)
	main, status, err := stores.New(stores.Kind{
		Resource:   rack.Resource("macnodes"),
		Singular:   "macnode",
		ShortNames: []string{"mn"},
		Category:   stores.Operators,
		New:        func() runtime.Object { return &rack.MacNode{} },
		NewList:    func() runtime.Object { return &rack.MacNodeList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, status, err
}
