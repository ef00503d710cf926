// Package pods handles the placeholder pods: it finds the pod of an instance and the instance of a
// pod, refuses foreign pods, and reports statuses.
package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	return errors.Join(recordErr, p.settle(ctx, name))
}

// writePending writes the pending rejections of a pod to the ledger.
func (p *Pods) writePending(ctx context.Context, name types.NamespacedName) error {
	p.mu.Lock()
	pending := p.pendingRecords[name]
	p.mu.Unlock()
	var err error
	for len(pending) > 0 {
		if err = p.Rejections.Create(ctx, pending[0]); rejections.IsTransient(err) {
			break
		}
		pending, err = pending[1:], nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pendingRecords[name] = pending; len(pending) == 0 {
		delete(p.pendingRecords, name)
	}
	return err
}

func (p *Pods) settle(ctx context.Context, name types.NamespacedName) error {
	pod, err := p.Lister().Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	instance, why, err := p.instanceOf(ctx, pod)
	if err != nil {
		return err
	}
	if instance != nil {
		return nil // the instance's reconciliation reports it
	}
	if _, held := p.Slots.Find(pod.Annotations[rules.AnnotationInstanceUID]); held && (pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil) {
		return nil // its virtual machine may still run, although its instance is unknown
	}
	if pod.DeletionTimestamp != nil {
		return p.Node.Forget(ctx, pod)
	}
	if Ended(pod) || p.Node.Ended(pod) {
		return nil
	}
	if pod.Status.Phase == corev1.PodRunning {
		// The pod was the placeholder of an instance that no longer exists.
		p.Fail(pod, rejections.ReasonInstanceGone, why)
		return nil
	}
	// A pod without an instance label is recorded only if it was bound to another tenant's Mac.
	var record *rackv1alpha1.AuditRecord
	switch claimed := pod.Labels[rules.LabelInstance]; {
	case claimed != "":
		record = p.Rejections.Rejection(rackv1alpha1.LayerAgent, pod.Namespace, &rackv1alpha1.AuditReference{
			Namespace: pod.Namespace, Name: claimed, UID: types.UID(pod.Annotations[rules.AnnotationInstanceUID]),
		}, rejections.ReasonForeignPod, why)
	case p.leasedToAnother(pod.Namespace):
		record = p.Rejections.Rejection(rackv1alpha1.LayerAgent, pod.Namespace, nil, rejections.ReasonForeignPod, fmt.Sprintf("pod %s: %s", pod.Name, why))
	}
	if record != nil {
		if err = p.Rejections.Create(ctx, record); rejections.IsTransient(err) {
			p.mu.Lock()
			p.pendingRecords[name] = append(p.pendingRecords[name], record)
			p.mu.Unlock()
		} else {
			err = nil
		}
	}
	p.Fail(pod, rejections.ReasonForeignPod, why)
	return err
}

// leasedToAnother reports whether the Mac is leased to another namespace.
func (p *Pods) leasedToAnother(namespace string) bool {
	macNode, err := p.MacNode.Cached()
	return err == nil && macNode.Status.LeaseRef != nil && macNode.Status.LeaseRef.Namespace != namespace
}

// instanceOf returns the instance that the placeholder pod belongs to, or the reason why no
// instance matches. On a cache miss, it reads the API.
func (p *Pods) instanceOf(ctx context.Context, pod *corev1.Pod) (*instancev1alpha1.MacOSInstance, string, error) {
	instance, err := p.OwnerOf(pod)
	if instance != nil || err != nil {
		return instance, "", err
	}
	name := pod.Labels[rules.LabelInstance]
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "MacOSInstance" {
		name = owner.Name
	}
	if name == "" {
		return nil, rules.OneTenantPerChassis.String() + ": a Mac runs only placeholder pods of MacOSInstances, and this pod has no MacOSInstance", nil
	}
	instance, err = p.Instances.Live(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("MacOSInstance %s/%s does not exist", pod.Namespace, name), nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Sprintf("MacOSInstance %s/%s is not on this Mac", pod.Namespace, name), nil
	case err != nil:
		return nil, "", err
	case !belongs(pod, instance):
		return nil, fmt.Sprintf("the pod is not the placeholder of MacOSInstance %s/%s, which has UID %s and pod %q", pod.Namespace, name, instance.UID, instance.Status.PodName), nil
	case !p.Instances.Here(instance):
		return nil, fmt.Sprintf("MacOSInstance %s/%s is on Mac %q, not on this Mac", pod.Namespace, name, instance.Status.NodeName), nil
	}
	return instance, "", nil
}

// Fail sets a pod's terminal status. Later statuses are not reported.
func (p *Pods) Fail(pod *corev1.Pod, reason, message string) {
	klog.InfoS("Pod refused", "pod", klog.KObj(pod), "reason", reason, "message", message)
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
	if !Ended(pod) {
		p.Node.SetPodStatus(pod, statusOf(seen, pod))
	}
	return nil
}
