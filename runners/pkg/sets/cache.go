package sets

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	instancelisters "macrack.io/macrack/pkg/generated/listers/instance/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/observe"
)

// Cache is a Reader of the leases and instances of all sets in a namespace. It wakes a set when one
// of its objects changes.
type Cache struct {
	factory   externalversions.SharedInformerFactory
	leases    racklisters.MacNodeLeaseNamespaceLister
	instances instancelisters.MacOSInstanceNamespaceLister
	informers []cache.SharedIndexInformer

	mu   sync.Mutex
	sets map[string]*Set
}

// NewCache returns the cache of a namespace.
func NewCache(client versioned.Interface, namespace string) *Cache {
	factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithNamespace(namespace),
		externalversions.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = observe.LabelSet }))
	leases, instances := factory.Rack().V1alpha1().MacNodeLeases(), factory.Instance().V1alpha1().MacOSInstances()
	return &Cache{
		factory: factory, leases: leases.Lister().MacNodeLeases(namespace), instances: instances.Lister().MacOSInstances(namespace),
		informers: []cache.SharedIndexInformer{leases.Informer(), instances.Informer()}, sets: map[string]*Set{},
	}
}

// Start fills the cache, and keeps it up to date until ctx ends.
func (c *Cache) Start(ctx context.Context) error {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: c.changed, DeleteFunc: c.changed, UpdateFunc: func(_, object any) { c.changed(object) },
	}
	var synced []cache.InformerSynced
	for _, informer := range c.informers {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return err
		}
		synced = append(synced, registration.HasSynced)
	}
	c.factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) && ctx.Err() == nil {
		return errors.New("the leases and instances could not be read")
	}
	return nil
}

func (c *Cache) changed(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if object, ok := object.(metav1.Object); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if set := c.sets[object.GetLabels()[observe.LabelSet]]; set != nil {
			set.Wake()
		}
	}
}

// watch sets the set to wake; nil wakes none.
func (c *Cache) watch(name string, set *Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets[name] = set
}

// Leases implements Reader.
func (c *Cache) Leases(set string) ([]*rackv1alpha1.MacNodeLease, error) {
	return c.leases.List(selector(set))
}

// Instances implements Reader.
func (c *Cache) Instances(set string) ([]*instancev1alpha1.MacOSInstance, error) {
	return c.instances.List(selector(set))
}

func selector(set string) labels.Selector {
	return labels.SelectorFromSet(labels.Set{observe.LabelSet: set})
}

// Sets returns the names of the sets that have objects.
func (c *Cache) Sets() map[string]bool {
	names := map[string]bool{}
	for _, informer := range c.informers {
		for _, object := range informer.GetStore().List() {
			if object, ok := object.(metav1.Object); ok {
				names[object.GetLabels()[observe.LabelSet]] = true
			}
		}
	}
	return names
}
