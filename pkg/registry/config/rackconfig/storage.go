package rackconfig

import (
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Storage is the storage of RackConfigs and of their status.
type Storage struct {
	RackConfig *genericstore.REST
	Status     *genericstore.StatusREST
}

// NewStorage returns the storage of RackConfigs.
func NewStorage(options genericstore.Options) (Storage, error) {
	strategy := NewStrategy(options.Typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource: config.Resource("rackconfigs"),
		Singular: "rackconfig",
		Category: genericstore.Operators,
		New:      func() runtime.Object { return &config.RackConfig{} },
		NewList:  func() runtime.Object { return &config.RackConfigList{} },
		Strategy: strategy,
		Status:   NewStatusStrategy(strategy),
		Attrs:    GetAttrs,
		Table:    NewTableConvertor(options.Clock),
	}, options)
	return Storage{main, status}, err
}
