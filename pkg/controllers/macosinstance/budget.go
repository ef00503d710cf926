package macosinstance

import (
	"context"
	"errors"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// budgetName returns the name of the PodDisruptionBudget of a lease. It derives from the UID, so it
// cannot be taken in advance.
func budgetName(lease *rackv1alpha1.MacNodeLease) string {
	return withSuffix(lease.Name, "-lease-"+hash(string(lease.UID)))
}

// disruptionBudget returns the PodDisruptionBudget that protects the placeholder pods of a lease
// from eviction. A lease has one for all its pods, so that a start writes none. No lease has more
// healthy pods than MinAvailable, so it never permits an eviction.
func disruptionBudget(lease *rackv1alpha1.MacNodeLease) *policyv1.PodDisruptionBudget {
	labels := map[string]string{rules.LabelLease: lease.Name}
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lease.Namespace, Name: budgetName(lease), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(lease, rackv1alpha1.SchemeGroupVersion.WithKind("MacNodeLease"))},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(rules.MaxVMsPerMac)),
			Selector:     &metav1.LabelSelector{MatchLabels: labels},
		},
	}
}

// syncBudget creates the PodDisruptionBudget of the instance's lease. It deletes the budget while
// the Mac is in maintenance, or if its spec is wrong. The garbage collector deletes it with the
// lease.
func (r *reconciler) syncBudget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	lease, err := r.leases.MacNodeLeases(instance.Namespace).Get(instance.Spec.LeaseName)
	if apierrors.IsNotFound(err) || err == nil && !predicates.BelongsTo(instance, lease) {
		return nil
	}
	if err != nil {
		return err
	}
	wanted := !r.inMaintenance(instance)
	client := r.budgetClient.PodDisruptionBudgets(lease.Namespace)
	budget, err := r.budgets.PodDisruptionBudgets(lease.Namespace).Get(budgetName(lease))
	switch {
	case apierrors.IsNotFound(err) && wanted:
		_, err = client.Create(ctx, disruptionBudget(lease), shared.CreateOptions)
		if apierrors.IsAlreadyExists(err) {
			return nil // the cache does not have it yet
		}
		return err
	case apierrors.IsNotFound(err):
		err = nil
	case err != nil:
		return err
	case budget.DeletionTimestamp == nil && (!wanted || !equality.Semantic.DeepEqual(budget.Spec, disruptionBudget(lease).Spec)):
		err = shared.IgnoreNotFound(client.Delete(ctx, budget.Name, metav1.DeleteOptions{}))
	}
	return errors.Join(err, r.removeOwnBudget(ctx, instance))
}

// removeOwnBudget deletes the PodDisruptionBudget that earlier versions created for each instance.
// Kubernetes evicts no pod with two budgets, not even in maintenance.
func (r *reconciler) removeOwnBudget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	name := withSuffix(instance.Name, podSuffix+"-"+hash(string(instance.UID)))
	budget, err := r.budgets.PodDisruptionBudgets(instance.Namespace).Get(name)
	if err != nil || !metav1.IsControlledBy(budget, instance) {
		return shared.IgnoreNotFound(err)
	}
	return shared.IgnoreNotFound(r.budgetClient.PodDisruptionBudgets(budget.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
}
