package macnode

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions"
)

// deriveConditions makes those conditions of a MacNode that neither its agent nor the controllers write follow from the
// rest of it. What they write depends on nothing of the spec that can change.
func deriveConditions(node *rack.MacNode, now time.Time) {
	list := &node.Status.Conditions
	set := func(name string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(list, metav1.Condition{
			Type: name, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
		})
	}
	if meta.FindStatusCondition(*list, rack.MacNodeReady) == nil {
		set(rack.MacNodeReady, metav1.ConditionUnknown, "NeverSeen", "the agent of the Mac has not sent a heartbeat yet")
	}
	if q := node.Status.Quarantine; q != nil {
		set(rack.MacNodeStalled, metav1.ConditionTrue, "Quarantined", q.Reason+": "+q.Message)
	} else {
		meta.RemoveStatusCondition(list, rack.MacNodeStalled)
	}
	conditions.Observe(*list, node.Generation)
	conditions.Fit(*list)
}
