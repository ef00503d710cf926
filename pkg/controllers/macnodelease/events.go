package macnodelease

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
)

// Reasons of Events on leases.
const (
	eventBound      = "Bound"
	eventHeld       = "Held"
	eventReleasing  = "Releasing"
	eventReleased   = "Released"
	eventExpired    = "Expired"
	eventWaiting    = "WaitingForMac"
	eventBindFailed = "BindRefused"
	eventMacReady   = "MacReady"
	eventMacNot     = "MacNotReady"
)

// describe returns the Event for a change of the lease. The reason is empty if the change does not
// matter to the tenant.
func describe(before, after *rackv1alpha1.MacNodeLease) (reason, message string) {
	if before == nil || after == nil || before.UID != after.UID {
		return "", ""
	}
	if before.Status.Phase == after.Status.Phase {
		if reason, message := describeHealth(before, after); reason != "" {
			return reason, message
		}
		return describeWaiting(before, after)
	}
	serial, floor := after.Status.SerialNumber, predicates.Floor(after).UTC().Format(time.RFC3339)
	switch after.Status.Phase {
	case rackv1alpha1.MacNodeLeaseBound:
		return eventBound, fmt.Sprintf("bound to Mac %s (MacNode %s) until %s at least", serial, after.Status.NodeName, floor)
	case rackv1alpha1.MacNodeLeaseHeld:
		return eventHeld, fmt.Sprintf("deleted before its floor: the lease keeps Mac %s until %s and is then released automatically; its current instances are stopped, and new ones can start until then", serial, floor)
	case rackv1alpha1.MacNodeLeaseReleasing:
		return eventReleasing, fmt.Sprintf("the floor passed at %s: Mac %s is being emptied and scrubbed, and then released", floor, serial)
	}
	return "", ""
}

func describeHealth(before, after *rackv1alpha1.MacNodeLease) (reason, message string) {
	oldMacReady := meta.FindStatusCondition(before.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionMacReady)
	newMacReady := meta.FindStatusCondition(after.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionMacReady)
	switch {
	case newMacReady == nil || oldMacReady != nil && oldMacReady.Message == newMacReady.Message:
		return "", ""
	case newMacReady.Status == metav1.ConditionFalse:
		return eventMacNot, newMacReady.Message
	}
	return eventMacReady, newMacReady.Message
}

func describeWaiting(before, after *rackv1alpha1.MacNodeLease) (reason, message string) {
	oldBound := meta.FindStatusCondition(before.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound)
	newBound := meta.FindStatusCondition(after.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound)
	if newBound == nil || newBound.Status != metav1.ConditionFalse || newBound.Message == "" || oldBound != nil && oldBound.Message == newBound.Message {
		return "", ""
	}
	return eventWaiting, newBound.Message
}
