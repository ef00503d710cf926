package instanceclass

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/instance"
)

// WarnOnDelete returns a function that warns of the deletion of an InstanceClass with instances
// that have not started yet.
func WarnOnDelete(instances rest.Lister) func(ctx context.Context, name string) (string, error) {
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
