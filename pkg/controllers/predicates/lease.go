package predicates

import (
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Floor returns the time at which the floor of the lease elapses: the stored one, or boundAt plus
// the minimum duration if that is later. It is the zero time for a lease that was never bound.
func Floor(lease *rackv1alpha1.MacNodeLease) time.Time {
	return rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
}

// Expiry returns the time at which the lease deletes itself, never before its floor; the zero time
// if it never does.
func Expiry(lease *rackv1alpha1.MacNodeLease) time.Time {
	return rules.LeaseExpiry(lease.Status.BoundAt, lease.Spec.ExpireAfter.Value(), Floor(lease))
}
