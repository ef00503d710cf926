package macosinstance

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
)

// needsPod reports whether the pod's name is reserved and the pod is not known to have
// existed. An instance has one pod in its life: a deleted pod is not created again.
func needsPod(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) bool {
	if pod != nil || instance.Status.Phase != instancev1alpha1.MacOSInstancePending {
		return false
	}
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	return condition == nil || slices.Contains([]string{ReasonCreatingPod, ReasonPodNameTaken, ReasonPodRefused}, condition.Reason)
}

// createPod creates the placeholder pod once the Node admits it. The pod's name is stored first, so
// that a pod that was created and deleted is not created again.
func (r *reconciler) createPod(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	lease, err := r.leases.MacNodeLeases(instance.Namespace).Get(instance.Spec.LeaseName)
	if apierrors.IsNotFound(err) || err == nil && (!predicates.BelongsTo(instance, lease) || !holdsMac(lease)) {
		return nil
	}
	if err != nil {
		return err
	}
	node, err := r.nodes.Get(instance.Status.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		_, err := r.setScheduled(ctx, instance, ReasonWaitingForNode, fmt.Sprintf("Node %s not found; the agent of the Mac has not registered it", instance.Status.NodeName))
		return err
	}
	if !predicates.AdmitsTenant(node, instance.Namespace) {
		_, err := r.setScheduled(ctx, instance, ReasonWaitingForNode, fmt.Sprintf("Node %s does not have the tenant's taint yet", node.Name))
		return err
	}
	if instance.Status.PodName == "" {
		if instance, err = r.setScheduledAs(ctx, instance, PodName(instance.Name), ReasonCreatingPod, "the placeholder pod is being created"); err != nil {
			return err
		}
	}
	// The registry accepts an instance only if its image exists, so the cache will have it.
	image, err := r.images.Get(instance.Spec.ImageName)
	if err != nil {
		return err
	}
	err = r.syncBudget(ctx, instance)
	var pod *corev1.Pod
	if err == nil {
		pod, err = r.podClient.Pods(instance.Namespace).Create(ctx, Placeholder(instance, image), shared.CreateOptions)
	}
	switch {
	case err == nil:
		klog.FromContext(ctx).V(1).Info("Placeholder pod created", "pod", klog.KObj(pod), "node", instance.Status.NodeName)
		return nil
	case apierrors.IsAlreadyExists(err):
		return r.onNameTaken(ctx, instance)
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		return r.onRefused(ctx, instance, err)
	default:
		return err
	}
}

// onNameTaken chooses another name for the placeholder pod if a pod of another owner has its first
// name. It waits while the pod of an earlier instance of the same name may still be terminating.
func (r *reconciler) onNameTaken(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	existing, err := r.podClient.Pods(instance.Namespace).Get(ctx, instance.Status.PodName, metav1.GetOptions{})
	if err != nil || isPodOf(existing, instance) {
		return err
	}
	if existing.DeletionTimestamp != nil && r.clock.Now().Before(existing.DeletionTimestamp.Add(stopMargin)) {
		return r.onRefused(ctx, instance, fmt.Errorf("pod %s of another owner is still being deleted", existing.Name))
	}
	name := nextPodName(instance)
	_, err = r.setScheduledAs(ctx, instance, name, ReasonPodNameTaken, fmt.Sprintf("pod name %s already in use; the placeholder pod is named %s", existing.Name, name))
	return err
}

// holdsMac reports whether the lease's Mac may still be used.
func holdsMac(lease *rackv1alpha1.MacNodeLease) bool {
	return lease.Status.Phase == rackv1alpha1.MacNodeLeaseBound || lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
}

// onRefused shows why there is no pod. It returns an error so that the creation is retried: no
// event announces that a quota has room.
func (r *reconciler) onRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason error) error {
	if _, err := r.setScheduled(ctx, instance, ReasonPodRefused, "placeholder pod refused: "+reason.Error()); err != nil {
		return err
	}
	return fmt.Errorf("creating the placeholder pod: %w", reason)
}
