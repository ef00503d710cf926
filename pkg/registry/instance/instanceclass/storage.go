package instanceclass

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// NewStorage returns the storage of InstanceClasses. It warns of the deletion of a class that has
// instances that have not started yet.
func NewStorage(options genericstore.Options, instances rest.Lister) (*genericstore.REST, error) {
	strategy := NewStrategy(options.Typer)
	main, _, err := genericstore.New(genericstore.Kind{
		Resource:     instance.Resource("instanceclasses"),
		Singular:     "instanceclass",
		ShortNames:   []string{"ic"},
		Category:     genericstore.Tenants,
		New:          func() runtime.Object { return &instance.InstanceClass{} },
		NewList:      func() runtime.Object { return &instance.InstanceClassList{} },
		Strategy:     strategy,
		Attrs:        GetAttrs,
		Table:        NewTableConvertor(options.Clock),
		WarnOnDelete: warnOnDelete(instances),
	}, options)
	return main, err
}

// warnOnDelete returns a function that warns of the deletion of an InstanceClass with instances
// that have not started yet.
func warnOnDelete(instances rest.Lister) func(ctx context.Context, name string) (string, error) {
	return func(ctx context.Context, name string) (string, error) {
		obj, err := instances.List(request.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{})
		if err != nil {
			return "", err
		}
		waiting := 0
		for _, i := range obj.(*instance.MacOSInstanceList).Items {
			switch i.Status.Phase {
			case instance.MacOSInstancePending, instance.MacOSInstanceScheduled, instance.MacOSInstancePulling:
				if i.Spec.ClassName == name {
					waiting++
				}
			}
		}
		if waiting == 0 {
			return "", nil
		}
		return fmt.Sprintf("InstanceClass %q is the class of %d instances that have not started yet; they fail unless the class exists again by then", name, waiting), nil
	}
}
