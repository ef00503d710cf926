package macosinstance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

func mustStop(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.DeletionTimestamp != nil || instance.Status.StopRequest != nil || instance.Status.Phase == instancev1alpha1.MacOSInstanceStopping
}

// cleanUp removes the pod of an instance that has ended and, if the instance is being deleted, its
// finalizer.
func (r *reconciler) cleanUp(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if err := r.removePod(ctx, pod); err != nil {
		return err
	}
	if instance.DeletionTimestamp == nil {
		return nil
	}
	released := instance.DeepCopy()
	if !removeFinalizer(released, rules.FinalizerVM) {
		return nil
	}
	_, err := shared.Patch(ctx, r.instanceClient.MacOSInstances(instance.Namespace), instance, released)
	return shared.IgnoreNotFound(err)
}

func (r *reconciler) removePod(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	return shared.IgnoreNotFound(r.podClient.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}))
}

// stop ends an instance that never had a virtual machine. While its pod is bound to the Node, only
// the agent may end it, as it may be about to start a virtual machine.
func (r *reconciler) stop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if pod != nil {
		if pod.Spec.NodeName == "" {
			return r.removePod(ctx, pod)
		}
		return nil
	}
	if pod, err := r.readPod(ctx, instance); pod != nil || err != nil {
		return err
	}
	return r.markStopped(ctx, instance, "stopped before its virtual machine started")
}

// onPodLost ends an instance whose pod was deleted, unless the agent already acts on it.
func (r *reconciler) onPodLost(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstancePending, instancev1alpha1.MacOSInstanceScheduled:
	default:
		return nil
	}
	pod, err := r.readPod(ctx, instance)
	if err != nil {
		return err
	}
	if pod != nil {
		return r.syncPod(ctx, instance, pod)
	}
	return r.markStopped(ctx, instance, rules.DescribeLoss(instance.Status.PodName))
}

func (r *reconciler) markStopped(ctx context.Context, instance *instancev1alpha1.MacOSInstance, message string) error {
	stopped := instance.DeepCopy()
	stopped.Status.Phase = instancev1alpha1.MacOSInstanceStopped
	stopped.Status.Message = message
	_, err := shared.PatchStatus(ctx, r.instanceClient.MacOSInstances(instance.Namespace), instance, stopped)
	return err
}

func removeFinalizer(obj metav1.Object, finalizer string) bool {
	var kept []string
	for _, f := range obj.GetFinalizers() {
		if f != finalizer {
			kept = append(kept, f)
		}
	}
	removed := len(kept) != len(obj.GetFinalizers())
	obj.SetFinalizers(kept)
	return removed
}
