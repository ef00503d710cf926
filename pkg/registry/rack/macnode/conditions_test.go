package macnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
)

func TestDeriveConditions(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	ready := func(status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, Reason: "Heartbeat", Message: "as the controllers say", ObservedGeneration: 1}}
	}
	for _, tt := range []struct {
		name       string
		quarantine *rack.Quarantine
		is         []metav1.Condition
		want       []string
		kstatus    string
	}{
		{"new", nil, nil, []string{"Ready=Unknown NeverSeen: the agent of the Mac has not sent a heartbeat yet"}, "InProgress"},
		{"online", nil, ready("True"), []string{"Ready=True Heartbeat: as the controllers say"}, "Current"},
		{"offline", nil, ready("False"), []string{"Ready=False Heartbeat: as the controllers say"}, "InProgress"},
		{"in quarantine", &rack.Quarantine{Reason: "KernelQuotaStuck", Message: "stuck"}, ready("True"),
			[]string{"Ready=True Heartbeat: as the controllers say", "Stalled=True Quarantined: KernelQuotaStuck: stuck"}, "Failed"},
		{"out of quarantine", nil, append(ready("True"), metav1.Condition{Type: "Stalled", Status: metav1.ConditionTrue, Reason: "Quarantined"}),
			[]string{"Ready=True Heartbeat: as the controllers say"}, "Current"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", Generation: 2}, Status: rack.MacNodeStatus{Quarantine: tt.quarantine, Conditions: tt.is}}
			deriveConditions(node, noon)
			assert.Equal(t, tt.want, conditionstest.Lines(node.Status.Conditions))
			for _, c := range node.Status.Conditions {
				assert.EqualValues(t, 2, c.ObservedGeneration, c.Type)
			}
			assert.Equal(t, tt.kstatus, conditionstest.KStatus(t, node.ObjectMeta, node.Status.Conditions))

			again := node.DeepCopy()
			deriveConditions(again, noon.Add(time.Hour))
			assert.Equal(t, node, again, "what has not changed is not written again")
		})
	}
}
