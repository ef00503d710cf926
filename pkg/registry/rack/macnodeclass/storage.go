package macnodeclass

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Storage is the storage of MacNodeClasses and of their status.
type Storage struct {
	MacNodeClass *genericstore.REST
	Status       *genericstore.StatusREST
}

// NewStorage returns the storage of MacNodeClasses. It warns of the deletion of a class that has
// Macs in nodes.
func NewStorage(options genericstore.Options, nodes rest.Lister) (Storage, error) {
	strategy := NewStrategy(options.Typer)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:     rack.Resource("macnodeclasses"),
		Singular:     "macnodeclass",
		ShortNames:   []string{"mnc"},
		Category:     genericstore.Tenants,
		New:          func() runtime.Object { return &rack.MacNodeClass{} },
		NewList:      func() runtime.Object { return &rack.MacNodeClassList{} },
		Strategy:     strategy,
		Status:       NewStatusStrategy(strategy),
		Attrs:        GetAttrs,
		Table:        NewTableConvertor(options.Clock),
		WarnOnDelete: warnOnDelete(nodes),
	}, options)
	return Storage{main, status}, err
}

// warnOnDelete returns a function that warns of the deletion of a MacNodeClass that has Macs in
// nodes.
func warnOnDelete(nodes rest.Lister) func(ctx context.Context, name string) (string, error) {
	return func(ctx context.Context, name string) (string, error) {
		obj, err := nodes.List(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.className", name)})
		if err != nil {
			return "", err
		}
		list := obj.(*rack.MacNodeList)
		if len(list.Items) == 0 {
			return "", nil
		}
		return fmt.Sprintf("MacNodeClass %q is the class of %d Macs, such as %q; no instance is accepted on them until the class exists again", name, len(list.Items), list.Items[0].Name), nil
	}
}
