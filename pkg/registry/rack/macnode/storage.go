package macnode

import (
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Storage is the storage of MacNodes and of their status.
type Storage struct {
	MacNode *genericstore.REST
	Status  *genericstore.StatusREST
}

// NewStorage returns the storage of MacNodes.
func NewStorage(options genericstore.Options) (Storage, error) {
	strategy := NewStrategy(options.Typer)
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
		Table:      NewTableConvertor(options.Clock),
	}, options)
	return Storage{main, status}, err
}
