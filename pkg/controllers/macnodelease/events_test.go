package macnodelease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestDescribe(t *testing.T) {
	waits := func(message string) func(*rackv1alpha1.MacNodeLease) {
		return func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Conditions = []metav1.Condition{{Type: "Bound", Status: metav1.ConditionFalse, Message: message}}
		}
	}
	macReady := func(status metav1.ConditionStatus, message string) func(*rackv1alpha1.MacNodeLease) {
		return func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Conditions = []metav1.Condition{{Type: "MacReady", Status: status, Message: message}}
		}
	}
	bound, held := aLease("a", 0, boundAt(time.Hour)), aLease("a", 0, boundAt(time.Hour), heldAt(0))
	releasing := aLease("a", 0, boundAt(time.Hour), func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing })
	for _, tt := range []struct {
		name            string
		before, after   *rackv1alpha1.MacNodeLease
		reason, message string
	}{
		{name: "new", after: bound},
		{name: "gone", before: bound},
		{name: "unchanged", before: bound, after: bound},
		{name: "another of the same name", before: aLease("a", 0), after: aLease("a", 0, boundAt(0), func(l *rackv1alpha1.MacNodeLease) { l.UID = "new" })},
		{name: "bound", before: aLease("a", 0), after: bound, reason: "Bound",
			message: "bound to Mac S-mac-1 (MacNode mac-1) until 2026-08-02T11:00:00Z at least"},
		{name: "held", before: bound, after: held, reason: "Held",
			message: "deleted before its floor: the lease keeps Mac S-mac-1 until 2026-08-02T11:00:00Z and is then released automatically; its current instances are stopped, and new ones can start until then"},
		{name: "releasing", before: held, after: releasing, reason: "Releasing",
			message: "the floor passed at 2026-08-02T11:00:00Z: Mac S-mac-1 is being emptied and scrubbed, and then released"},
		{name: "waiting", before: aLease("a", 0), after: aLease("a", 0, waits("none is free")), reason: "WaitingForMac", message: "none is free"},
		{name: "waiting for something else", before: aLease("a", 0, waits("none is free")), after: aLease("a", 0, waits("still none")), reason: "WaitingForMac", message: "still none"},
		{name: "the Mac is offline", before: bound, after: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")), reason: "MacNotReady", message: "away"},
		{name: "the Mac is still offline", before: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")), after: aLease("a", 1, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away"))},
		{name: "the Mac is back", before: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")),
			after: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionTrue, "back")), reason: "MacReady", message: "back"},
		{name: "still waiting", before: aLease("a", 0, waits("none is free")), after: aLease("a", 1, waits("none is free"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.reason, reason)
			assert.Equal(t, tt.message, message)
		})
	}
}
