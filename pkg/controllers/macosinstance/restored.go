package macosinstance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// isRestored reports whether the instance was restored and needs a new placeholder pod. The garbage
// collector may have deleted the first one while the API server had lost the instance.
func isRestored(instance *instancev1alpha1.MacOSInstance) bool {
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	return instance.Status.MachineID != "" && condition != nil && condition.Reason == instancev1alpha1.ReasonRestored
}

// restoredPodName returns the name of the placeholder pod of a restored instance. It derives from
// the time of the restore, because the pod of an earlier restore may still be terminating.
func restoredPodName(instance *instancev1alpha1.MacOSInstance) string {
	return withSuffix(instance.Name, podSuffix+"-"+hash(string(instance.UID)+"/"+instance.CreationTimestamp.UTC().Format(time.RFC3339)))
}

// restorePod gives a restored instance a new placeholder pod under another name. The agent removes
// the first pod once the new name is stored.
func (r *reconciler) restorePod(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if instance.Status.PodName == "" {
		_, err := r.setScheduledAs(ctx, instance, restoredPodName(instance), instancev1alpha1.ReasonRestored, "the instance was restored and gets a new placeholder pod")
		return err // its change queues it again
	}
	if pod == nil {
		return r.createPod(ctx, instance)
	}
	if err := r.syncPod(ctx, instance, pod); err != nil || pod.Spec.NodeName != instance.Status.NodeName {
		return err
	}
	_, err := r.setScheduled(ctx, instance, ReasonScheduled, "")
	return err
}
