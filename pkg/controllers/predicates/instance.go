package predicates

import (
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// BelongsTo reports whether the instance belongs to this lease, and not to an earlier one of the
// same name.
func BelongsTo(instance *instancev1alpha1.MacOSInstance, lease *rackv1alpha1.MacNodeLease) bool {
	return rules.BelongsToLease(instance, instance.Spec.LeaseName, rules.LeaseID{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID})
}
