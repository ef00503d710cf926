// Package pods handles the placeholder pods: it finds the pod of an instance and the instance of a
// pod, refuses foreign pods, and reports statuses.
package pods

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Config configures Pods.
type Config struct {
	Kube       kubernetes.Interface
	Node       *node.Node
	Instances  *objects.Instances
	MacNode    *objects.MacNode
	Slots      *slots.Manager
	Rejections *rejections.Recorder
	Queue      *queue.Queue[queue.Key]
}

// Pods are the placeholder pods on this Mac.
type Pods struct {
	Config

	mu sync.Mutex
	// pendingRecords holds, by pod name, the rejections that are not yet recorded in the ledger.
	pendingRecords map[types.NamespacedName][]*rackv1alpha1.AuditRecord
}

// New returns the pods.
func New(config Config) *Pods {
	return &Pods{Config: config, pendingRecords: map[types.NamespacedName][]*rackv1alpha1.AuditRecord{}}
}

// Enqueue enqueues the pods of a namespace on this Mac, because a pod may outlive its instance.
func (p *Pods) Enqueue(namespace string) error {
	pods, err := p.Lister().Pods(namespace).List(labels.Everything())
	for _, pod := range pods {
		p.Queue.Add(queue.Pod(pod.Namespace, pod.Name))
	}
	return err
}

// Ended reports whether the pod is in a terminal phase.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// belongs reports whether the pod is the placeholder of the instance. The controllers write its
// name to the instance's status. A pod of an earlier instance may still have that name, so a UID
// must match until the instance has a machine ID. Later, changes of the pod's labels, annotations
// and owners by the tenant have no effect.
func belongs(pod *corev1.Pod, instance *instancev1alpha1.MacOSInstance) bool {
	return pod.Namespace == instance.Namespace && pod.Name == instance.Status.PodName &&
		(instance.Status.MachineID != "" ||
			pod.Annotations[rules.AnnotationInstanceUID] == string(instance.UID) || metav1.IsControlledBy(pod, instance))
}

// Lister lists the pods on this Mac.
func (p *Pods) Lister() corelisters.PodLister { return p.Node.Pods() }

// Placeholder returns the instance's pod on this Mac, or nil.
func (p *Pods) Placeholder(instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	pod, err := p.Lister().Pods(instance.Namespace).Get(instance.Status.PodName)
	if apierrors.IsNotFound(err) || err == nil && !belongs(pod, instance) {
		return nil, nil
	}
	return pod, err
}

// OwnerOf returns the instance on this Mac that the placeholder pod belongs to, from the cache, or
// nil.
func (p *Pods) OwnerOf(pod *corev1.Pod) (*instancev1alpha1.MacOSInstance, error) {
	instances, err := p.Instances.InNamespace(pod.Namespace)
	if err != nil {
		return nil, err
	}
	for _, instance := range instances {
		if belongs(pod, instance) {
			return instance, nil
		}
	}
	return nil, nil
}

// Gone reports whether the instance has no pod on this Mac. It reads from the API, because the
// cache may be stale.
func (p *Pods) Gone(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (bool, error) {
	pods, err := p.Kube.CoreV1().Pods(instance.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.MacNode.Name).String(),
	})
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return belongs(&p, instance) }), nil
}

// Reconcile refuses a pod that is not a placeholder, and releases a pod that is being deleted.
// Neither waits for the ledger: pending records are written later, even after the pod is deleted.
func (p *Pods) Reconcile(ctx context.Context, name types.NamespacedName) error {
	recordErr := p.writePending(ctx, name)
	return errors.Join(recordErr, p.refuseForeign(ctx, name))
}

// Fail sets a pod's terminal status. Later statuses are not reported.
func (p *Pods) Fail(pod *corev1.Pod, reason, message string) {
	klog.InfoS("Pod failed", "pod", klog.KObj(pod), "reason", reason, "message", message)
	p.Node.SetPodStatus(pod, corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: reason, Message: message, StartTime: pod.Status.StartTime,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason, Message: message}},
	})
}

// Report sets the status of the placeholder pod from that of its instance.
func (p *Pods) Report(ctx context.Context, seen *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	// The pod keeps the status of the instance as read. The writes of the reconciliation arrive
	// later as an event.
	_, held := p.Slots.Find(string(seen.UID))
	if pod.DeletionTimestamp != nil && rules.InstanceEnded(seen.Status.Phase) && !held {
		p.Node.SetPodStatus(pod, statusOf(seen, pod))
		return p.Node.Forget(ctx, pod)
	}
	if !Ended(pod) && !isNew(seen, pod) {
		p.Node.SetPodStatus(pod, statusOf(seen, pod))
	}
	return nil
}

// isNew reports whether the pod is Pending, as the scheduler left it, and there is nothing to add.
// The next report follows soon, so this one would only cost a write for each start.
func isNew(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) bool {
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstancePending, instancev1alpha1.MacOSInstanceScheduled:
		return !hasMessage(instance) && len(pod.Status.ContainerStatuses) == 0 && !waitsForEnvironment(instance)
	}
	return false
}

// hasMessage reports whether the instance has a message other than that of the controllers, who may
// not have seen yet that the pod is bound.
func hasMessage(instance *instancev1alpha1.MacOSInstance) bool {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	return instance.Status.Message != "" && (c == nil || c.Message != instance.Status.Message)
}
