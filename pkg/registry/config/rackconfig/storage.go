package rackconfig

import (
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// NewStorage returns the storage of RackConfigs.
func NewStorage(options genericstore.Options) (*genericstore.REST, error) {
	strategy := NewStrategy(options.Typer)
	main, _, err := genericstore.New(genericstore.Kind{
		Resource: config.Resource("rackconfigs"),
		Singular: "rackconfig",
		Category: genericstore.Operators,
		New:      func() runtime.Object { return &config.RackConfig{} },
		NewList:  func() runtime.Object { return &config.RackConfigList{} },
		Strategy: strategy,
		Attrs:    GetAttrs,
		Table:    NewTableConvertor(options.Clock),
	}, options)
	return main, err
}
