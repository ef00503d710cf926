package rules

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Phases of a lease that the rules distinguish. They are the values of the API.
const (
	leasePending   = "Pending"
	leaseBound     = "Bound"
	leaseHeld      = "Held"
	leaseReleasing = "Releasing"
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

// CheckAcceptsInstance refuses a new instance on a lease in phase, with the floor earliestRelease,
// unless the lease is Bound, or Held and before its floor.
func CheckAcceptsInstance(lease, phase string, earliestRelease, now time.Time) error {
	switch phase {
	case leaseBound:
		return nil
	case leaseHeld:
		if !FloorPassed(now, earliestRelease) {
			return nil
		}
		return refuse(LeaseNotUsable, "lease %q was deleted and its floor passed at %s; create a new lease",
			lease, earliestRelease.UTC().Format(time.RFC3339))
	case leasePending, "":
		return refuse(NotYet, "lease %q has no Mac yet (Pending); wait until it is Bound: kubectl wait --for=condition=Bound macnodeleases/%s", lease, lease)
	case leaseReleasing:
		return refuse(LeaseNotUsable, "lease %q is being released; create a new lease", lease)
	default:
		return refuse(LeaseNotUsable, "lease %q has ended (%s); create a new lease", lease, phase)
	}
}
