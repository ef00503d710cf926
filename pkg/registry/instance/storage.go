// Package instance assembles the storage of the API group instance.macrack.io.
package instance

import (
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/instance/instanceclass"
	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/registry/rack"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// Storage is the storage of the API group.
type Storage struct {
	InstanceClasses *genericstore.REST
	MacOSInstances  macosinstance.Storage
}

// NewStorage returns the storage of the API group. Instances run on the leases and Macs in rack.
func NewStorage(options genericstore.Options, filter *tenancy.Filter, rack rack.Storage) (Storage, error) {
	instances, err := macosinstance.NewStorage(options, filter.Objects, rack.MacNodeLeases.MacNodeLease, rack.MacNodes.MacNode)
	if err != nil {
		return Storage{}, err
	}
	classes, err := instanceclass.NewStorage(options, instances.MacOSInstance)
	if err != nil {
		return Storage{}, err
	}
	return Storage{InstanceClasses: classes, MacOSInstances: instances}, nil
}

// Resources returns the storage of each resource in the paths of the API group.
func (s Storage) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"instanceclasses":       s.InstanceClasses,
		"macosinstances":        s.MacOSInstances.MacOSInstance,
		"macosinstances/status": s.MacOSInstances.Status,
		"macosinstances/stop":   s.MacOSInstances.Stop,
	}
}
