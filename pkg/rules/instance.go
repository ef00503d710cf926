package rules

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// InstanceEnded reports whether an instance in this phase has ended for good.
func InstanceEnded[Phase ~string](phase Phase) bool { return phase == "Stopped" || phase == "Failed" }

// A LeaseID identifies one lease among all leases, past and present, with its name.
type LeaseID struct {
	Namespace, Name string
	UID             types.UID
}

// BelongsToLease reports whether an instance with the given leaseName belongs to this lease. An
// earlier lease with the same name has another UID.
func BelongsToLease(instance metav1.Object, leaseName string, lease LeaseID) bool {
	return instance.GetNamespace() == lease.Namespace && leaseName == lease.Name && lease.UID != "" &&
		slices.ContainsFunc(instance.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == lease.UID })
}
