package pods

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/agent/rejections"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

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

// refuseForeign refuses a pod without an instance, or releases it if it is being deleted.
func (p *Pods) refuseForeign(ctx context.Context, name types.NamespacedName) error {
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
	if _, held := p.Slots.Find(pod.Annotations[rules.AnnotationInstanceUID]); held && !p.replaced(pod) && (pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil) {
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

// replaced reports whether the instance of a pod has another placeholder pod. A restored instance
// has, because the garbage collector may have deleted the first one while the server had lost the
// instance.
func (p *Pods) replaced(pod *corev1.Pod) bool {
	instances, err := p.Instances.InNamespace(pod.Namespace)
	return err == nil && slices.ContainsFunc(instances, func(i *instancev1alpha1.MacOSInstance) bool {
		return string(i.UID) == pod.Annotations[rules.AnnotationInstanceUID] && i.Status.PodName != "" && i.Status.PodName != pod.Name
	})
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
