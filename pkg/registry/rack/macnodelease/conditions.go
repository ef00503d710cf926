package macnodelease

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions"
)

// DeriveConditions derives the conditions of a lease from the rest of the object. The conditions
// that the controllers write do not depend on mutable fields of the spec.
func DeriveConditions(lease *rack.MacNodeLease, now time.Time) {
	list := &lease.Status.Conditions
	set := func(name string, status metav1.ConditionStatus, reason, message string) {
		conditions.Set(list, now, name, status, reason, message)
	}
	serial, floor := lease.Status.SerialNumber, format(lease.Status.EarliestReleaseAt)
	switch lease.Status.Phase {
	case rack.MacNodeLeaseBound:
		set(rack.MacNodeLeaseConditionBound, metav1.ConditionTrue, "Bound", fmt.Sprintf("Mac %s is leased until %s at least", serial, floor))
	case rack.MacNodeLeaseHeld:
		set(rack.MacNodeLeaseConditionBound, metav1.ConditionTrue, "Held", fmt.Sprintf("lease deleted; Mac %s is released at %s", serial, floor))
	case rack.MacNodeLeaseReleasing:
		set(rack.MacNodeLeaseConditionBound, metav1.ConditionTrue, "Releasing", fmt.Sprintf("Mac %s is being released", serial))
	case rack.MacNodeLeaseReleased:
		message := fmt.Sprintf("Mac %s was released at %s", serial, format(lease.Status.ReleasedAt))
		set(rack.MacNodeLeaseConditionBound, metav1.ConditionFalse, "Released", message)
		set(rack.MacNodeLeaseConditionReleased, metav1.ConditionTrue, "Released", message)
		meta.RemoveStatusCondition(list, rack.MacNodeLeaseConditionMacReady)
	}
	summarize(lease).Set(list, now)
	conditions.Observe(*list, lease.Generation)
	conditions.Fit(*list)
}

// summarize returns whether instances can run on the Mac of a lease, and otherwise whether that
// needs intervention.
func summarize(lease *rack.MacNodeLease) conditions.Summary {
	condition := func(name string) metav1.Condition {
		return conditions.Get(lease.Status.Conditions, name)
	}
	bound, mac, released := condition(rack.MacNodeLeaseConditionBound), condition(rack.MacNodeLeaseConditionMacReady), condition(rack.MacNodeLeaseConditionReleased)
	s := conditions.Summary{Ready: metav1.ConditionFalse, Abnormal: conditions.Reconciling}
	switch lease.Status.Phase {
	case rack.MacNodeLeaseBound, rack.MacNodeLeaseHeld:
		if mac.Status != metav1.ConditionFalse {
			return conditions.Summary{Ready: metav1.ConditionTrue, Reason: bound.Reason, Message: bound.Message}
		}
		s.Reason, s.Message = mac.Reason, mac.Message
		if mac.Reason != rack.ReasonMacOffline { // a quarantine needs a reboot or an administrator
			s.Abnormal = conditions.Stalled
		}
	case rack.MacNodeLeaseReleasing:
		s.Reason, s.Message = cmp.Or(released.Reason, bound.Reason), cmp.Or(released.Message, bound.Message)
		if released.Reason == rack.ReasonScrubFailed {
			s.Abnormal = conditions.Stalled
		}
	case rack.MacNodeLeaseReleased:
		s.Reason, s.Message, s.Abnormal = bound.Reason, bound.Message, ""
	default:
		s.Reason, s.Message = cmp.Or(bound.Reason, string(rack.MacNodeLeasePending)), cmp.Or(bound.Message, "waiting for a Mac")
		switch bound.Reason {
		case rack.ReasonUnknownClass, rack.ReasonEmptyClass:
			s.Abnormal = conditions.Stalled
		}
	}
	return s
}

// format returns a time as in the API, or the zero time for nil.
func format(t *metav1.Time) string { return ptr.Deref(t, metav1.Time{}).UTC().Format(time.RFC3339) }
