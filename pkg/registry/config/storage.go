// Package config assembles the storage of the API group config.macrack.io.
package config

import (
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/registry/config/rackconfig"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Storage is the storage of the API group.
type Storage struct{ RackConfigs rackconfig.Storage }

// NewStorage returns the storage of the API group.
func NewStorage(options genericstore.Options) (Storage, error) {
	configs, err := rackconfig.NewStorage(options)
	return Storage{configs}, err
}

// Resources returns the storage of each resource in the paths of the API group.
func (s Storage) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"rackconfigs":        s.RackConfigs.RackConfig,
		"rackconfigs/status": s.RackConfigs.Status,
	}
}
