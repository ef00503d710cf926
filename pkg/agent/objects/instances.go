// Package objects reads and writes the API objects of this Mac: its MacNode and the MacOSInstances
// on it. It writes statuses as patches of the changes, whatever others have written meanwhile: the
// registry checks them.
package objects

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	instanceinformers "macrack.io/macrack/pkg/generated/informers/externalversions/instance/v1alpha1"
	instancelisters "macrack.io/macrack/pkg/generated/listers/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/faults"
)

// ownWrites is the time for which the agent prefers its own writes to its caches. The limit matters
// after an API restore: the restored objects keep their older versions.
const ownWrites = 10 * time.Second

// Instances are the MacOSInstances on this Mac.
type Instances struct {
	nodeName string
	client   versioned.Interface
	lister   instancelisters.MacOSInstanceLister
	// written holds the agent's writes until the cache has them.
	written cache.MutationCache
	queue   *queue.Queue[queue.Key]
	clock   clock.PassiveClock
}

// NewInstances returns the instances on the Mac nodeName. The informer must have no others, except
// those that have just left the Mac.
func NewInstances(nodeName string, client versioned.Interface, informer instanceinformers.MacOSInstanceInformer, q *queue.Queue[queue.Key], c clock.PassiveClock) *Instances {
	return &Instances{
		nodeName: nodeName, client: client, lister: informer.Lister(), queue: q, clock: c,
		written: cache.NewIntegerResourceVersionMutationCache(klog.Background(), informer.Informer().GetStore(), nil, ownWrites, false),
	}
}

// Cached returns an instance from the cache.
func (s *Instances) Cached(namespace, name string) (*instancev1alpha1.MacOSInstance, error) {
	return s.lister.MacOSInstances(namespace).Get(name)
}

// Newest returns an instance from the cache, or the agent's own write if that is newer.
func (s *Instances) Newest(namespace, name string) (*instancev1alpha1.MacOSInstance, error) {
	cached, err := s.Cached(namespace, name)
	if err != nil {
		return nil, err
	}
	obj, exists, err := s.written.GetByKey(types.NamespacedName{Namespace: namespace, Name: name}.String())
	if err != nil || !exists {
		return cached, err
	}
	written := obj.(*instancev1alpha1.MacOSInstance)
	if written.UID != cached.UID {
		return cached, nil
	}
	if written != cached {
		// If the API was restored to an earlier state, the cache sends no later event.
		s.queue.AddAfter(queue.Instance(namespace, name), ownWrites)
	}
	return written, nil
}

// Live returns an instance from the API, because the cache may be stale.
func (s *Instances) Live(ctx context.Context, namespace, name string) (*instancev1alpha1.MacOSInstance, error) {
	return s.client.InstanceV1alpha1().MacOSInstances(namespace).Get(ctx, name, metav1.GetOptions{})
}

// All returns the instances in the cache.
func (s *Instances) All() ([]*instancev1alpha1.MacOSInstance, error) {
	return s.lister.List(labels.Everything())
}

// InNamespace returns a namespace's instances on this Mac.
func (s *Instances) InNamespace(namespace string) ([]*instancev1alpha1.MacOSInstance, error) {
	all, err := s.lister.MacOSInstances(namespace).List(labels.Everything())
	return slices.DeleteFunc(all, func(i *instancev1alpha1.MacOSInstance) bool { return !s.Here(i) }), err
}

// Here reports whether the instance is on this Mac.
func (s *Instances) Here(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.Status.NodeName == s.nodeName
}

// Images returns the names of the images of the instances on this Mac that have not ended.
func (s *Instances) Images() ([]string, error) {
	all, err := s.All()
	var names []string
	for _, instance := range all {
		if s.Here(instance) && !rules.InstanceEnded(instance.Status.Phase) {
			names = append(names, instance.Spec.ImageName)
		}
	}
	return names, err
}

// Update writes the status if change modifies it, and returns the updated instance.
func (s *Instances) Update(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) (*instancev1alpha1.MacOSInstance, error) {
	next := instance.DeepCopy()
	change(&next.Status)
	if equality.Semantic.DeepEqual(instance.Status, next.Status) {
		return instance, nil
	}
	faults.At("report " + string(next.Status.Phase) + ": before")
	written, err := s.patchStatus(ctx, instance, next)
	faults.At("report " + string(next.Status.Phase) + ": after")
	return written, err
}

func (s *Instances) patchStatus(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
	patch, err := apiclient.StatusPatch(before, after)
	if err != nil {
		return nil, err
	}
	return s.Patch(ctx, after, patch)
}

// Patch patches the status of an instance.
func (s *Instances) Patch(ctx context.Context, instance *instancev1alpha1.MacOSInstance, patch []byte) (*instancev1alpha1.MacOSInstance, error) {
	written, err := s.client.InstanceV1alpha1().MacOSInstances(instance.Namespace).Patch(ctx, instance.Name, apiclient.PatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, err
	}
	s.Wrote(written)
	return written, nil
}

// Wrote remembers an instance as the agent wrote it.
func (s *Instances) Wrote(instance *instancev1alpha1.MacOSInstance) {
	s.written.Mutation(instance)
}

// SetCondition sets a condition in a status of the instance.
func (s *Instances) SetCondition(status *instancev1alpha1.MacOSInstanceStatus, instance *instancev1alpha1.MacOSInstance, name string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: name, Status: value, Reason: reason, Message: message,
		ObservedGeneration: instance.Generation, LastTransitionTime: Now(s.clock),
	})
}

// Now returns the time as statuses hold it.
func Now(c clock.PassiveClock) metav1.Time {
	return metav1.Time{Time: c.Now().Truncate(time.Second)}
}

// InstanceRef refers to an instance in an event.
func InstanceRef(instance *instancev1alpha1.MacOSInstance) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: instancev1alpha1.SchemeGroupVersion.String(), Kind: "MacOSInstance",
		Namespace: instance.Namespace, Name: instance.Name, UID: instance.UID,
	}
}
