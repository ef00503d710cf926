package macosinstance

import (
	"context"
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// syncPod restores the metadata by which the placeholder pod names its instance, and protects the
// pod from eviction unless its Mac is in maintenance. A pod without its label is not in the
// cache.
func (r *reconciler) syncPod(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	return errors.Join(r.restoreMetadata(ctx, instance, pod), r.syncBudget(ctx, instance))
}

func (r *reconciler) restoreMetadata(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if instance.DeletionTimestamp != nil {
		return nil // the garbage collector decides whether to orphan the pod
	}
	if pod == nil {
		var err error
		if pod, err = r.readPod(ctx, instance); pod == nil || err != nil {
			return err
		}
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	patch, err := metadataPatch(instance, pod, r.inMaintenance(instance))
	if err != nil || patch == nil {
		return err
	}
	klog.FromContext(ctx).Info("Restoring placeholder pod metadata", "pod", klog.KObj(pod), "instance", klog.KObj(instance))
	_, err = r.podClient.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, shared.PatchOptions)
	return shared.IgnoreNotFound(err)
}

// metadataPatch returns the merge patch that restores the label, the annotations and the owner of
// instance's placeholder pod, or nil. Other labels and annotations stay.
func metadataPatch(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, maintenance bool) ([]byte, error) {
	want := placeholderMeta(instance)
	restored := pod.ObjectMeta.DeepCopy()
	for label, value := range want.Labels {
		metav1.SetMetaDataLabel(restored, label, value)
	}
	metav1.SetMetaDataAnnotation(restored, rules.AnnotationInstanceUID, want.Annotations[rules.AnnotationInstanceUID])
	delete(restored.Annotations, rules.AnnotationMaintenance)
	if maintenance {
		metav1.SetMetaDataAnnotation(restored, rules.AnnotationMaintenance, "true")
	}
	if len(pod.OwnerReferences) != 1 || !metav1.IsControlledBy(pod, instance) {
		restored.OwnerReferences = want.OwnerReferences
	}
	if equality.Semantic.DeepEqual(restored, &pod.ObjectMeta) {
		return nil, nil
	}
	annotations := map[string]any{rules.AnnotationInstanceUID: restored.Annotations[rules.AnnotationInstanceUID], rules.AnnotationMaintenance: nil}
	if maintenance {
		annotations[rules.AnnotationMaintenance] = "true"
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             pod.UID,
		"resourceVersion": pod.ResourceVersion,
		"labels":          want.Labels,
		"annotations":     annotations,
		"ownerReferences": restored.OwnerReferences,
	}})
}

// inMaintenance reports whether the instance's Mac is in maintenance, so that its virtual machines
// may be evicted.
func (r *reconciler) inMaintenance(instance *instancev1alpha1.MacOSInstance) bool {
	mac, err := r.macs.Get(instance.Status.NodeName)
	return err == nil && mac.Spec.Maintenance
}
