package macnode

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of MacNode objects and of their status.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*genericstore.REST, *genericstore.StatusREST, error) {
	strategy := NewStrategy(typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:   rack.Resource("macnodes"),
		Singular:   "macnode",
		ShortNames: []string{"mn"},
		Category:   genericstore.Operators,
		New:        func() runtime.Object { return &rack.MacNode{} },
		NewList:    func() runtime.Object { return &rack.MacNodeList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, status, err
}
