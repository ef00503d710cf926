package agent

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/teardown"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/pkg/rules"
)

// apiObjects are the API objects of this Mac and their informers.
type apiObjects struct {
	instances                         *objects.Instances
	macNode                           *objects.MacNode
	instanceInformer, macNodeInformer cache.SharedIndexInformer
}

// newAPIObjects watches only this Mac's MacNode and the instances on it.
func newAPIObjects(config Config, q *queue.Queue[queue.Key]) *apiObjects {
	only := func(field string) externalversions.SharedInformerOption {
		return externalversions.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(field, config.NodeName).String()
		})
	}
	instances := externalversions.NewSharedInformerFactoryWithOptions(config.Macrack, 0, only("status.nodeName")).Instance().V1alpha1().MacOSInstances()
	macNodes := externalversions.NewSharedInformerFactoryWithOptions(config.Macrack, 0, only("metadata.name")).Rack().V1alpha1().MacNodes()
	return &apiObjects{
		instances:        objects.NewInstances(config.NodeName, config.Macrack, instances, q, config.Clock),
		macNode:          objects.NewMacNode(config.NodeName, config.Macrack, macNodes, config.Clock),
		instanceInformer: instances.Informer(), macNodeInformer: macNodes.Informer(),
	}
}

// startInformers starts the informers. The result reports whether their handlers have seen all
// objects.
func (a *Agent) startInformers(ctx context.Context, running *sync.WaitGroup) ([]cache.InformerSynced, error) {
	onInstance, err := a.objects.instanceInformer.AddEventHandler(handler(a.enqueueInstance))
	if err != nil {
		return nil, err
	}
	onMacNode, err := a.objects.macNodeInformer.AddEventHandler(handler(func(macNode *rackv1alpha1.MacNode) {
		a.enqueueAll()
		a.prefetcher.Enqueue(macNode)
	}))
	if err != nil {
		return nil, err
	}
	configFactory := externalversions.NewSharedInformerFactoryWithOptions(a.config.Macrack, 0)
	configs := configFactory.Config().V1alpha1().RackConfigs().Informer()
	if _, err := configs.AddEventHandler(handler(a.configure)); err != nil {
		return nil, err
	}
	running.Go(func() { configs.RunWithContext(ctx) })
	running.Go(func() { a.objects.instanceInformer.RunWithContext(ctx) })
	running.Go(func() { a.objects.macNodeInformer.RunWithContext(ctx) })
	return []cache.InformerSynced{onInstance.HasSynced, onMacNode.HasSynced}, nil
}

// configure applies the RackConfig.
func (a *Agent) configure(config *configv1alpha1.RackConfig) {
	heartbeats, fleet := config.Heartbeats(), config.Status.HeartbeatInterval.Value()
	a.node.SetHeartbeat(heartbeats.AgentInterval(fleet))
	awaiting := config.Status.ImagesAwaitingMac
	a.checker.SetSchedule(heartbeats.ImageCheckInterval(fleet), awaiting != nil && *awaiting == 0)
	if minimum := config.Spec.ImageCache.MinimumFree; minimum != nil {
		a.minimumFree.Store(minimum.Int64())
	}
	a.rebooter.SetPolicy(config.Spec.Quarantine)
	a.queue.Add(queue.MacNode())
}

// handler returns an event handler that calls on with the newest object of every event.
func handler[T any](on func(T)) cache.ResourceEventHandler {
	call := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if t, ok := obj.(T); ok {
			on(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: call, UpdateFunc: func(_, obj any) { call(obj) }, DeleteFunc: call}
}

func (a *Agent) enqueueInstance(instance *instancev1alpha1.MacOSInstance) {
	if stop, _ := teardown.Requested(instance); stop {
		a.puller.Cancel(instance.UID)
	}
	a.stopper.Enqueue(string(instance.UID))
	if rules.InstanceEnded(instance.Status.Phase) {
		a.queue.Add(queue.MacNode()) // a scrub waits for the end of the instance
	}
	a.queue.Add(queue.Instance(instance.Namespace, instance.Name))
}

func (a *Agent) enqueuePod(pod *corev1.Pod) {
	a.stopper.Enqueue(pod.Annotations[rules.AnnotationInstanceUID])
	a.queue.Add(queue.Pod(pod.Namespace, pod.Name))
	if instance, _ := a.pods.OwnerOf(pod); instance != nil {
		if pod.DeletionTimestamp != nil {
			a.puller.Cancel(instance.UID)
		}
		a.stopper.Enqueue(string(instance.UID)) // a tenant may have changed the pod's annotations
		a.queue.Add(queue.Instance(instance.Namespace, instance.Name))
	}
}

// enqueueSlots queues the instances in the slots, and the MacNode.
func (a *Agent) enqueueSlots() {
	a.queue.Add(queue.MacNode())
	if a.stopper == nil {
		return // not connected yet
	}
	for _, s := range a.slots.Statuses() {
		if s.Spec != nil {
			a.stopper.EnqueueSlot(s.Slot)
			a.queue.Add(queue.Instance(s.Spec.Namespace, s.Spec.Name))
		}
	}
	a.enqueueWaiting()
}

// enqueueWaiting queues the instances without a slot, because a slot may have become free.
func (a *Agent) enqueueWaiting() {
	statuses := a.slots.Statuses()
	if !slices.ContainsFunc(statuses[:], func(s slots.Status) bool { return s.Phase == slots.Free }) {
		return
	}
	all, _ := a.objects.instances.All()
	for _, instance := range all {
		if _, held := a.slots.Find(string(instance.UID)); !held && !rules.InstanceEnded(instance.Status.Phase) {
			a.queue.Add(queue.Instance(instance.Namespace, instance.Name))
		}
	}
}

// enqueueAll queues all objects, because the lease of the Mac may have changed.
func (a *Agent) enqueueAll() {
	a.enqueueSlots()
	all, _ := a.objects.instances.All()
	for _, instance := range all {
		a.enqueueInstance(instance)
	}
}
