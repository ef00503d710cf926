package main

import (
	"context"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/test/cluster"
)

// An observer counts events that a flood must not cause.
type observer struct {
	mu sync.Mutex
	// leadershipsLost counts changes of the controllers' leader, offline the Macs that were marked
	// Offline, and flaps the conditions of Macs that changed.
	leadershipsLost, offline, flaps int
}

func (o *observer) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leadershipsLost, o.offline, o.flaps = 0, 0, 0
}

func (o *observer) add(count *int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*count++
}

// observe observes the cluster as its administrator, whose requests no flood delays.
func observe(ctx context.Context, c *cluster.Cluster) (*observer, error) {
	config, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		return nil, err
	}
	macrack, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	o := &observer{}
	macs := externalversions.NewSharedInformerFactory(macrack, 0)
	if _, err := macs.Rack().V1alpha1().MacNodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, new any) { o.onMac(old.(*rackv1alpha1.MacNode), new.(*rackv1alpha1.MacNode)) },
	}); err != nil {
		return nil, err
	}
	leases := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(cluster.Namespace))
	if _, err := leases.Coordination().V1().Leases().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, new any) { o.onLeadership(old.(*coordinationv1.Lease), new.(*coordinationv1.Lease)) },
	}); err != nil {
		return nil, err
	}
	macs.Start(ctx.Done())
	leases.Start(ctx.Done())
	macs.WaitForCacheSync(ctx.Done())
	leases.WaitForCacheSync(ctx.Done())
	return o, nil
}

func (o *observer) onMac(old, new *rackv1alpha1.MacNode) {
	if old.Status.Phase != new.Status.Phase && new.Status.Phase == rackv1alpha1.MacNodeOffline {
		o.add(&o.offline)
	}
	for _, condition := range new.Status.Conditions {
		for _, earlier := range old.Status.Conditions {
			if condition.Type == earlier.Type && condition.Status != earlier.Status {
				o.add(&o.flaps)
			}
		}
	}
}

func (o *observer) onLeadership(old, new *coordinationv1.Lease) {
	holder := func(l *coordinationv1.Lease) string {
		if l.Spec.HolderIdentity == nil {
			return ""
		}
		return *l.Spec.HolderIdentity
	}
	if holder(old) != "" && holder(old) != holder(new) {
		o.add(&o.leadershipsLost)
	}
}
