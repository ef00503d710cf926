package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics/legacyregistry"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// rejections returns the values of macrack_rejections_total that are not zero, by rule and layer.
func rejections(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "macrack_rejections_total" {
			continue
		}
		require.Len(t, f.GetMetric(), 16, "the series are there before the first rejection, and no others")
		for _, m := range f.GetMetric() {
			values[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return values
}

func TestRejectionsAreCounted(t *testing.T) {
	for name, tt := range map[string]struct {
		record *rack.AuditRecord
		want   string
	}{
		"a third VM":      {&rack.AuditRecord{Type: rack.InstanceRejected, Details: rack.AuditDetails{Layer: rack.LayerRegistry, Reason: "NoFreeSlot"}}, "TwoVMsPerChassis Registry"},
		"by the kernel":   {&rack.AuditRecord{Type: rack.InstanceRejected, Details: rack.AuditDetails{Layer: rack.LayerKernel, Reason: "KernelQuotaStuck"}}, "TwoVMsPerChassis Kernel"},
		"a mistake":       {&rack.AuditRecord{Type: rack.InstanceRejected, Details: rack.AuditDetails{Layer: rack.LayerRegistry, Reason: rules.ReasonNoSuchImage}}, "None Registry"},
		"a foreign pod":   {&rack.AuditRecord{Type: rack.InstanceRejected, Details: rack.AuditDetails{Layer: rack.LayerAgent, Reason: "ForeignPod"}}, "OneTenantPerChassis Agent"},
		"another tenant":  {&rack.AuditRecord{Type: rack.CrossTenantRejected, Details: rack.AuditDetails{Layer: rack.LayerRegistry, Reason: "MacIsLeased"}}, "OneTenantPerChassis Registry"},
		"a moved floor":   {&rack.AuditRecord{Type: rack.FloorTamperRejected, Details: rack.AuditDetails{Reason: "FloorMoved"}}, "TwentyFourHours Registry"},
		"made-up strings": {&rack.AuditRecord{Type: rack.InstanceRejected, Details: rack.AuditDetails{Layer: "x", Reason: "y"}}, "TwoVMsPerChassis Registry"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &book{}
			r := NewRejections(testingclock.NewFakeClock(start), b.write)
			before := rejections(t)
			for range 3 {
				require.NoError(t, r.Reject(as("alice"), tt.record.DeepCopy()))
			}
			assert.Len(t, b.counts(), 1, "the others are folded")
			before[tt.want] += 3
			assert.Equal(t, before, rejections(t))
		})
	}
	failing := NewRejections(testingclock.NewFakeClock(start), func(context.Context, *rack.AuditRecord) error { return errors.New("down") })
	before := rejections(t)
	require.Error(t, failing.Reject(as("alice"), refusal("acme", "build", "third")))
	assert.Equal(t, before, rejections(t), "a rejection that is not recorded is repeated by its client")
}
