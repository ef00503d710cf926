package macosinstance

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// Storage is the storage of MacOSInstances and of their subresources.
type Storage struct {
	MacOSInstance *REST
	Status        *genericstore.StatusREST
	Stop          *StopREST
}

// nodeIndex is the index by Mac: each agent watches the instances of its own.
var nodeIndex = &genericstore.Index{
	Field: "status.nodeName",
	Value: func(obj runtime.Object) string { return obj.(*instance.MacOSInstance).Status.NodeName },
}

// NewStorage returns the storage of MacOSInstances. The filter hides instances from users.
func NewStorage(options genericstore.Options, filter rejection.Filter, leases Leases, nodes rest.Lister) (Storage, error) {
	strategy := NewStrategy(options.Typer)
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
		Table:      NewTableConvertor(options.Clock),
		Index:      nodeIndex,
		Filter:     filter,
	}, options)
	if err != nil {
		return Storage{}, err
	}
	return Storage{
		MacOSInstance: &REST{REST: main, clock: options.Clock, leases: leases, nodes: nodes, waiting: map[string]int{}},
		Status:        status,
		Stop:          &StopREST{genericstore.NewSubresource(main, strategy, options), options.Clock},
	}, nil
}
