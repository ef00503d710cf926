package console

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

var (
	images  = cmdutil.Resource{Name: "Images", Resource: "macosimages", Group: imagev1alpha1.GroupName}
	classes = cmdutil.Resource{Name: "Classes", Resource: "macnodeclasses", Group: rackv1alpha1.GroupName}
)

// newSources returns the sources of a model. Tenants' objects come from the first of the namespaces
// that the user may list; "" means all.
func newSources(c *cmdutil.Clients, namespaces []string, m *model, clock clock.WithTicker) []*source {
	rack, instance, image := c.MacRack.RackV1alpha1(), c.MacRack.InstanceV1alpha1(), c.MacRack.ImageV1alpha1()
	everywhere := []string{metav1.NamespaceAll}
	sources := []*source{
		{kind: Macs, resource: fleet.Macs, namespaces: everywhere, example: &rackv1alpha1.MacNode{},
			list: func(ctx context.Context, _ string, o metav1.ListOptions) (runtime.Object, error) {
				return rack.MacNodes().List(ctx, o)
			},
			watch: func(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
				return rack.MacNodes().Watch(ctx, o)
			}},
		{kind: Leases, resource: fleet.Leases, namespaces: namespaces, example: &rackv1alpha1.MacNodeLease{},
			list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
				return rack.MacNodeLeases(namespace).List(ctx, o)
			},
			watch: func(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
				return rack.MacNodeLeases(namespace).Watch(ctx, o)
			}},
		{kind: Instances, resource: fleet.Instances, namespaces: namespaces, example: &instancev1alpha1.MacOSInstance{},
			list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
				return instance.MacOSInstances(namespace).List(ctx, o)
			},
			watch: func(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
				return instance.MacOSInstances(namespace).Watch(ctx, o)
			}},
		{kind: Images, resource: images, namespaces: everywhere, example: &imagev1alpha1.MacOSImage{},
			list: func(ctx context.Context, _ string, o metav1.ListOptions) (runtime.Object, error) {
				return image.MacOSImages().List(ctx, o)
			},
			watch: func(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
				return image.MacOSImages().Watch(ctx, o)
			}},
		{kind: Classes, resource: classes, namespaces: everywhere, example: &rackv1alpha1.MacNodeClass{},
			list: func(ctx context.Context, _ string, o metav1.ListOptions) (runtime.Object, error) {
				return rack.MacNodeClasses().List(ctx, o)
			},
			watch: func(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
				return rack.MacNodeClasses().Watch(ctx, o)
			}},
	}
	for _, s := range sources {
		s.client, s.model, s.clock = c.MacRack, m, clock
	}
	return sources
}
