package macosimage

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// NewStorage returns the storage of MacOSImage objects and of their status.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter, clock clock.PassiveClock, recorder rejection.Recorder) (*genericstore.REST, *genericstore.StatusREST, error) {
	strategy := NewStrategy(typer)
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
		Table:      NewTableConvertor(clock),
	}, getter, recorder)
	return main, status, err
}
