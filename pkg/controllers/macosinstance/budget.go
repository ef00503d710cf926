package macosinstance

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

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

// syncBudget creates the PodDisruptionBudget of an instance that has not ended. It deletes the
// budget while the Mac is in maintenance, or if its spec is wrong.
func (r *reconciler) syncBudget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	wanted := !rules.InstanceEnded(instance.Status.Phase) && !r.inMaintenance(instance)
	budget, err := r.budgets.PodDisruptionBudgets(instance.Namespace).Get(budgetName(instance))
	switch {
	case apierrors.IsNotFound(err) && wanted:
		_, err := r.budgetClient.PodDisruptionBudgets(instance.Namespace).Create(ctx, disruptionBudget(instance), shared.CreateOptions)
		if apierrors.IsAlreadyExists(err) {
			return nil // the cache does not have it yet
		}
		return err
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case budget.DeletionTimestamp == nil && (!wanted || !equality.Semantic.DeepEqual(budget.Spec, disruptionBudget(instance).Spec)):
		return shared.IgnoreNotFound(r.budgetClient.PodDisruptionBudgets(budget.Namespace).Delete(ctx, budget.Name, metav1.DeleteOptions{}))
	}
	return nil
}
