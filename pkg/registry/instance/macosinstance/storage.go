package macosinstance

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of MacOSInstance objects and of their status. The filter hides
// instances from users.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.Clock, recorder rejection.Recorder, filter rejection.Filter, leases Leases, nodes rest.Lister) (*REST, *genericstore.StatusREST, error) {
	strategy := NewStrategy(typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:   instance.Resource("macosinstances"),
		Singular:   "macosinstance",
		ShortNames: []string{"mi"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &instance.MacOSInstance{} },
		NewList:    func() runtime.Object { return &instance.MacOSInstanceList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(clock),
		Filter:     filter,
	}, getter, recorder)
	return &REST{REST: main, clock: clock, leases: leases, nodes: nodes, waiting: map[string]int{}}, status, err
}
