// Package observe translates objects of MacRack into the facts of the floor rule.
package observe

import (
	"k8s.io/apimachinery/pkg/api/meta"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
)

// Lease returns the facts about a lease and its machines. The result is false if the lease has
// released its Mac, or was deleted before it had one.
func Lease(lease *rackv1alpha1.MacNodeLease, all []machines.Machine) (floor.Lease, bool) {
	facts := floor.Lease{Name: lease.Name}
	deleted := lease.DeletionTimestamp != nil
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseReleased:
		return facts, false
	case rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld, rackv1alpha1.MacNodeLeaseReleasing:
	default:
		facts.Phase, facts.Refusal = floor.Pending, refusal(lease)
		return facts, !deleted
	}
	facts.Phase = floor.Ending
	if lease.Status.Phase == rackv1alpha1.MacNodeLeaseBound && !deleted {
		facts.Phase = floor.Bound
	}
	for _, m := range all {
		switch {
		case m.Lease == lease.Name && m.State == machines.Busy:
			facts.Busy++
		case m.Lease == lease.Name && m.State == machines.Warm:
			facts.Ready++
		}
	}
	facts.IdleSince = Time(lease, AnnotationJobEndedAt)
	if at := lease.Status.EarliestReleaseAt; at != nil {
		facts.Floor = at.Time
	}
	if at := lease.Status.BoundAt; at != nil && at.After(facts.IdleSince) {
		facts.IdleSince = at.Time
	}
	facts.Offline = meta.IsStatusConditionFalse(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionMacReady)
	return facts, true
}

// refusal returns the reason and the message for which a lease gets no Mac, or "".
func refusal(lease *rackv1alpha1.MacNodeLease) string {
	bound := meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound)
	if bound == nil {
		return ""
	}
	switch bound.Reason {
	case rackv1alpha1.ReasonUnknownClass, rackv1alpha1.ReasonEmptyClass, rackv1alpha1.ReasonNoMacAvailable, rackv1alpha1.ReasonMacNotAvailable:
		return bound.Reason + ": " + bound.Message
	}
	return ""
}
