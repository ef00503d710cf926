package macosinstance

import (
	"context"
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// keep restores the metadata by which the placeholder pod names its instance, and protects the pod
// from eviction unless its Mac is in maintenance. A pod without its label is not in the cache.
func (r *reconciler) keep(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	return errors.Join(r.keepMeta(ctx, instance, pod), r.keepBudget(ctx, instance))
}

func (r *reconciler) keepMeta(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if instance.DeletionTimestamp != nil {
		return nil // the garbage collector decides whether to orphan the pod
	}
	if pod == nil {
		var err error
		if pod, err = r.podNow(ctx, instance); pod == nil || err != nil {
			return err
		}
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	patch, err := mend(instance, pod, r.inMaintenance(instance))
	if err != nil || patch == nil {
		return err
	}
	klog.FromContext(ctx).Info("Restoring placeholder pod metadata", "pod", klog.KObj(pod), "instance", klog.KObj(instance))
	return ignoreNotFound(r.patchPod(ctx, pod, patch))
}

// mend returns the merge patch that restores the label, the annotations and the owner of instance's
// placeholder pod, or nil. Other labels and annotations stay.
func mend(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, maintenance bool) ([]byte, error) {
	want := placeholderMeta(instance)
	mended := pod.ObjectMeta.DeepCopy()
	metav1.SetMetaDataLabel(mended, rules.LabelInstance, want.Labels[rules.LabelInstance])
	metav1.SetMetaDataAnnotation(mended, rules.AnnotationInstanceUID, want.Annotations[rules.AnnotationInstanceUID])
	delete(mended.Annotations, rules.AnnotationMaintenance)
	if maintenance {
		metav1.SetMetaDataAnnotation(mended, rules.AnnotationMaintenance, "true")
	}
	if len(pod.OwnerReferences) != 1 || !metav1.IsControlledBy(pod, instance) {
		mended.OwnerReferences = want.OwnerReferences
	}
	if equality.Semantic.DeepEqual(mended, &pod.ObjectMeta) {
		return nil, nil
	}
	annotations := map[string]any{rules.AnnotationInstanceUID: mended.Annotations[rules.AnnotationInstanceUID], rules.AnnotationMaintenance: nil}
	if maintenance {
		annotations[rules.AnnotationMaintenance] = "true"
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             pod.UID,
		"resourceVersion": pod.ResourceVersion,
		"labels":          map[string]any{rules.LabelInstance: mended.Labels[rules.LabelInstance]},
		"annotations":     annotations,
		"ownerReferences": mended.OwnerReferences,
	}})
}

// inMaintenance reports whether the instance's Mac is in maintenance, so that its virtual machines
// may be evicted.
func (r *reconciler) inMaintenance(instance *instancev1alpha1.MacOSInstance) bool {
	mac, err := r.getMac(instance.Status.NodeName)
	return err == nil && mac.Spec.Maintenance
}

// budgetName returns the name of the PodDisruptionBudget of instance. It derives from the UID, so
// it cannot be taken in advance.
func budgetName(instance *instancev1alpha1.MacOSInstance) string {
	return withSuffix(instance.Name, podSuffix+"-"+hash(string(instance.UID)))
}

// disruptionBudget returns the PodDisruptionBudget that protects the placeholder pod of instance
// from eviction.
func disruptionBudget(instance *instancev1alpha1.MacOSInstance) *policyv1.PodDisruptionBudget {
	meta := placeholderMeta(instance)
	meta.Name, meta.Annotations = budgetName(instance), nil
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: meta,
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{rules.LabelInstance: instance.Name}},
		},
	}
}

// keepBudget creates the PodDisruptionBudget of an instance that has not ended. It deletes the
// budget while the Mac is in maintenance, or if its spec is wrong.
func (r *reconciler) keepBudget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	wanted := !rules.InstanceEnded(instance.Status.Phase) && !r.inMaintenance(instance)
	budget, err := r.getBudget(instance.Namespace, budgetName(instance))
	switch {
	case apierrors.IsNotFound(err) && wanted:
		if err = r.createBudget(ctx, disruptionBudget(instance)); apierrors.IsAlreadyExists(err) {
			return nil // the cache does not have it yet
		}
		return err
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case budget.DeletionTimestamp == nil && (!wanted || !equality.Semantic.DeepEqual(budget.Spec, disruptionBudget(instance).Spec)):
		return ignoreNotFound(r.deleteBudget(ctx, budget))
	}
	return nil
}
