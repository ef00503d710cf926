package macnode

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions"
)

// deriveConditions sets the conditions of a MacNode that neither its agent nor the controllers
// write. The others do not depend on mutable fields of the spec.
func deriveConditions(node *rack.MacNode, now time.Time) {
	list := &node.Status.Conditions
	if meta.FindStatusCondition(*list, rack.MacNodeReady) == nil {
		conditions.Set(list, now, rack.MacNodeReady, metav1.ConditionUnknown, "NeverSeen", "the agent of the Mac has not sent a heartbeat yet")
	}
	if q := node.Status.Quarantine; q != nil {
		conditions.Set(list, now, rack.MacNodeStalled, metav1.ConditionTrue, "Quarantined", q.Reason+": "+q.Message)
	} else {
		meta.RemoveStatusCondition(list, rack.MacNodeStalled)
	}
	conditions.Observe(*list, node.Generation)
	conditions.Fit(*list)
}
