package macosinstance

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
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
	at := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition).LastTransitionTime
	return withSuffix(instance.Name, podSuffix+"-"+hash(string(instance.UID)+"/"+at.UTC().Format(time.RFC3339)))
}

// restorePod gives a restored instance a new placeholder pod under another name, unless the one
// from before the loss has survived. The agent removes the first pod once the new name is stored.
func (r *reconciler) restorePod(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	if unnamed := condition.Message == rules.MessageRestored; unnamed && (pod == nil || pod.DeletionTimestamp != nil) {
		name, err := r.survivingPod(instance)
		if err == nil {
			_, err = r.setScheduledAs(ctx, instance, cmp.Or(name, restoredPodName(instance)), instancev1alpha1.ReasonRestored, "the placeholder pod is being restored")
		}
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

// survivingPod returns the name of a placeholder pod of a restored instance that is bound to the
// Mac and not being deleted, or an empty string. It occupies the slot of a new one.
func (r *reconciler) survivingPod(instance *instancev1alpha1.MacOSInstance) (string, error) {
	pods, err := r.pods.Pods(instance.Namespace).List(labels.SelectorFromSet(labels.Set{rules.LabelInstance: instance.Name}))
	for _, pod := range pods {
		if pod.Annotations[rules.AnnotationInstanceUID] == string(instance.UID) && pod.DeletionTimestamp == nil && requestsVM(pod) &&
			pod.Spec.NodeName == instance.Status.NodeName {
			return pod.Name, nil
		}
	}
	return "", err
}
