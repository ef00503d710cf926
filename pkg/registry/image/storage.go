// Package image assembles the storage of the API group image.macrack.io.
package image

import (
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/image/macosimage"
)

// Storage is the storage of the API group.
type Storage struct{ MacOSImages macosimage.Storage }

// NewStorage returns the storage of the API group.
func NewStorage(options genericstore.Options) (Storage, error) {
	images, err := macosimage.NewStorage(options)
	return Storage{images}, err
}

// Resources returns the storage of each resource in the paths of the API group.
func (s Storage) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"macosimages":        s.MacOSImages.MacOSImage,
		"macosimages/status": s.MacOSImages.Status,
	}
}
