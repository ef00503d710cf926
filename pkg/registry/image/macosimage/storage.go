package macosimage

import (
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Storage is the storage of MacOSImages and of their status.
type Storage struct {
	MacOSImage *genericstore.REST
	Status     *genericstore.StatusREST
}

// NewStorage returns the storage of MacOSImages.
func NewStorage(options genericstore.Options) (Storage, error) {
	strategy := NewStrategy(options.Typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:   image.Resource("macosimages"),
		Singular:   "macosimage",
		ShortNames: []string{"mimg"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &image.MacOSImage{} },
		NewList:    func() runtime.Object { return &image.MacOSImageList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(options.Clock),
	}, options)
	return Storage{main, status}, err
}
