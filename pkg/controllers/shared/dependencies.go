// Package shared has what the controllers share: clients, informers with their indexes, the clock
// and the event recorder.
package shared

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers"
	certificatesv1informers "k8s.io/client-go/informers/certificates/v1"
	coordinationv1informers "k8s.io/client-go/informers/coordination/v1"
	corev1informers "k8s.io/client-go/informers/core/v1"
	policyv1informers "k8s.io/client-go/informers/policy/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	informers "macrack.io/macrack/pkg/generated/informers/externalversions"
	configinformers "macrack.io/macrack/pkg/generated/informers/externalversions/config/v1alpha1"
	imageinformers "macrack.io/macrack/pkg/generated/informers/externalversions/image/v1alpha1"
	instanceinformers "macrack.io/macrack/pkg/generated/informers/externalversions/instance/v1alpha1"
	rackinformers "macrack.io/macrack/pkg/generated/informers/externalversions/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Names of the indexes.
const (
	byClass = "class"
	byLease = "lease"
	byNode  = "node"
	byPod   = "pod"
)

// Dependencies are what the controllers share.
type Dependencies struct {
	MacRack  versioned.Interface
	Core     kubernetes.Interface
	Clock    clock.WithDelayedExecution
	Recorder record.EventRecorder

	MacNodeClasses rackinformers.MacNodeClassInformer
	MacNodes       rackinformers.MacNodeInformer
	MacNodeLeases  rackinformers.MacNodeLeaseInformer
	MacOSInstances instanceinformers.MacOSInstanceInformer
	MacOSImages    imageinformers.MacOSImageInformer
	RackConfigs    configinformers.RackConfigInformer

	Nodes corev1informers.NodeInformer
	// Pods are the placeholder pods only.
	Pods corev1informers.PodInformer
	// Budgets are all PodDisruptionBudgets.
	Budgets policyv1informers.PodDisruptionBudgetInformer
	// Heartbeats are the Leases in kube-node-lease.
	Heartbeats coordinationv1informers.LeaseInformer
	// Certificates are the CertificateSigningRequests.
	Certificates certificatesv1informers.CertificateSigningRequestInformer

	factories []factory
}

// factory is what the informer factories of all clients have in common.
type factory interface {
	StartWithContext(ctx context.Context)
	WaitForCacheSyncWithContext(ctx context.Context) cache.SyncResult
	Shutdown()
}

// New returns Dependencies whose informers have not been started.
func New(macrack versioned.Interface, core kubernetes.Interface, clock clock.WithDelayedExecution, recorder record.EventRecorder) (*Dependencies, error) {
	ours := informers.NewSharedInformerFactoryWithOptions(macrack, 0, informers.WithTransform(trim))
	nodes := coreinformers.NewSharedInformerFactoryWithOptions(core, 0, coreinformers.WithTransform(trim))
	pods := coreinformers.NewSharedInformerFactoryWithOptions(core, 0, coreinformers.WithTransform(trim),
		coreinformers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = rules.LabelInstance }))
	heartbeats := coreinformers.NewSharedInformerFactoryWithOptions(core, 0, coreinformers.WithTransform(trim),
		coreinformers.WithNamespace(corev1.NamespaceNodeLease))

	d := &Dependencies{
		MacRack:        macrack,
		Core:           core,
		Clock:          clock,
		Recorder:       recorder,
		MacNodeClasses: ours.Rack().V1alpha1().MacNodeClasses(),
		MacNodes:       ours.Rack().V1alpha1().MacNodes(),
		MacNodeLeases:  ours.Rack().V1alpha1().MacNodeLeases(),
		MacOSInstances: ours.Instance().V1alpha1().MacOSInstances(),
		MacOSImages:    ours.Image().V1alpha1().MacOSImages(),
		RackConfigs:    ours.Config().V1alpha1().RackConfigs(),
		Nodes:          nodes.Core().V1().Nodes(),
		Pods:           pods.Core().V1().Pods(),
		Budgets:        nodes.Policy().V1().PodDisruptionBudgets(),
		Heartbeats:     heartbeats.Coordination().V1().Leases(),
		Certificates:   nodes.Certificates().V1().CertificateSigningRequests(),
		factories:      []factory{ours, nodes, pods, heartbeats},
	}
	for _, index := range []struct {
		informer cache.SharedIndexInformer
		indexers cache.Indexers
	}{
		{d.MacNodes.Informer(), cache.Indexers{
			byClass: controller.IndexFunc(func(mac *rackv1alpha1.MacNode) []string { return []string{mac.Spec.ClassName} }),
		}},
		{d.MacNodeLeases.Informer(), cache.Indexers{
			byClass: controller.IndexFunc(func(lease *rackv1alpha1.MacNodeLease) []string { return []string{lease.Spec.ClassName} }),
		}},
		{d.MacOSInstances.Informer(), cache.Indexers{
			byLease: controller.IndexFunc(func(instance *instancev1alpha1.MacOSInstance) []string {
				return []string{instance.Namespace + "/" + instance.Spec.LeaseName}
			}),
			byNode: controller.IndexFunc(func(instance *instancev1alpha1.MacOSInstance) []string { return []string{instance.Status.NodeName} }),
			byPod: controller.IndexFunc(func(instance *instancev1alpha1.MacOSInstance) []string {
				return []string{instance.Namespace + "/" + instance.Status.PodName}
			}),
		}},
	} {
		if err := index.informer.AddIndexers(index.indexers); err != nil {
			return nil, fmt.Errorf("adding an index: %w", err)
		}
	}
	return d, nil
}

// Start starts the informers and waits until their caches have synced. It fails if ctx ends first.
func (d *Dependencies) Start(ctx context.Context) error {
	for _, f := range d.factories {
		f.StartWithContext(ctx)
	}
	for _, f := range d.factories {
		if err := f.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
			return fmt.Errorf("syncing the informers' caches: %w", err)
		}
	}
	return nil
}

// Wait waits until the informers have stopped. They stop when the context of Start is done.
func (d *Dependencies) Wait() {
	for _, f := range d.factories {
		f.Shutdown()
	}
}

// MacsOf returns the Macs of a class. The objects are shared with the informer: do not change them.
func (d *Dependencies) MacsOf(class string) ([]*rackv1alpha1.MacNode, error) {
	return controller.ByIndex[rackv1alpha1.MacNode](d.MacNodes.Informer().GetIndexer(), byClass, class)
}

// LeasesOf returns the leases of a class.
func (d *Dependencies) LeasesOf(class string) ([]*rackv1alpha1.MacNodeLease, error) {
	return controller.ByIndex[rackv1alpha1.MacNodeLease](d.MacNodeLeases.Informer().GetIndexer(), byClass, class)
}

// InstancesOf returns the instances that name a lease.
func (d *Dependencies) InstancesOf(namespace, leaseName string) ([]*instancev1alpha1.MacOSInstance, error) {
	return controller.ByIndex[instancev1alpha1.MacOSInstance](d.MacOSInstances.Informer().GetIndexer(), byLease, namespace+"/"+leaseName)
}

// InstancesOn returns the instances of a Node.
func (d *Dependencies) InstancesOn(nodeName string) ([]*instancev1alpha1.MacOSInstance, error) {
	return controller.ByIndex[instancev1alpha1.MacOSInstance](d.MacOSInstances.Informer().GetIndexer(), byNode, nodeName)
}

// InstancesOfPod returns the instances that name a placeholder pod.
func (d *Dependencies) InstancesOfPod(namespace, podName string) ([]*instancev1alpha1.MacOSInstance, error) {
	return controller.ByIndex[instancev1alpha1.MacOSInstance](d.MacOSInstances.Informer().GetIndexer(), byPod, namespace+"/"+podName)
}

// Key returns the namespace/name of an object.
func Key(obj metav1.Object) string {
	return cache.MetaObjectToName(obj).String()
}

// trim drops managed fields, which no controller reads, to save memory.
func trim(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
