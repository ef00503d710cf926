package macnodeclass

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/rack"
)

// WarnOnDelete returns a function that warns of the deletion of a MacNodeClass that has Macs in
// nodes.
func WarnOnDelete(nodes rest.Lister) func(ctx context.Context, name string) (string, error) {
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
