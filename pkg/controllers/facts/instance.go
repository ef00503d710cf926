package facts

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// IsTerminal says whether the instance has ended for good.
func IsTerminal(instance *instancev1alpha1.MacOSInstance) bool {
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstanceStopped, instancev1alpha1.MacOSInstanceFailed:
		return true
	}
	return false
}

// BelongsTo says whether the instance runs in this very lease, not in an earlier one of the same name.
func BelongsTo(instance *instancev1alpha1.MacOSInstance, lease *rackv1alpha1.MacNodeLease) bool {
	return instance.Namespace == lease.Namespace &&
		instance.Spec.LeaseName == lease.Name &&
		isOwned(instance, lease)
}

func isOwned(instance, owner metav1.Object) bool {
	for _, ref := range instance.GetOwnerReferences() {
		if ref.UID == owner.GetUID() {
			return true
		}
	}
	return false
}
