package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// lost returns the record of a loss that began after a time.
func lost(node *rack.MacNode, after time.Time) *rack.AuditRecord {
	node.Status.Quarantine = &rack.Quarantine{Reason: "LedgerBehind", Message: "3 records are missing"}
	record := NewNodeQuarantined(node)
	record.Details.WitnessedSequence, record.Details.WitnessedHash = 4, "d"
	if !after.IsZero() {
		record.Details.LostAfter = seconds(after)
	}
	return record
}

// ended returns the record of the end of a loss.
func ended(node *rack.MacNode) *rack.AuditRecord {
	record := NewNodeRecovered(node, ReasonRestored, "")
	record.Details.WitnessedSequence, record.Details.WitnessedHash = 4, "d"
	return record
}

// between returns the report on the time between two times.
func (m *memory) between(t *testing.T, from, to time.Time) rack.ComplianceReportStatus {
	t.Helper()
	statuses, err := Report(t.Context(), m.source(), nil, Window{Name: "between", From: from, To: to})
	require.NoError(t, err)
	return statuses[0]
}

// A Mac that has seen records that the chain does not have makes the reports incomplete, from the
// last record before the loss until the restore, and for no other time.
func TestReportOfLostHistory(t *testing.T) {
	m := newMemory()
	node := newNode("mac1")
	old, renewed := newLease("acme", "old"), newLease("globex", "new")
	m.bind(t, old, node)
	before := m.clock.Now()
	m.step(48 * time.Hour)
	boundAt := metav1.NewTime(m.clock.Now().Add(-12 * time.Hour)) // in the lost history
	quarantined := lost(node, before)
	m.append(t, quarantined)
	assert.Equal(t, quarantined.Hash, Hash(quarantined), "the hash covers what the Mac has seen")
	for name, change := range map[string]func(*rack.AuditDetails){
		"witnessedSequence": func(d *rack.AuditDetails) { d.WitnessedSequence++ },
		"witnessedHash":     func(d *rack.AuditDetails) { d.WitnessedHash = "e" },
		"lostAfter":         func(d *rack.AuditDetails) { d.LostAfter = nil },
		"startGrantedAt":    func(d *rack.AuditDetails) { d.StartGrantedAt = seconds(before) },
	} {
		changed := quarantined.DeepCopy()
		change(&changed.Details)
		assert.NotEqual(t, quarantined.Hash, Hash(changed), name)
	}
	m.step(12 * time.Hour)
	refused := NewCrossTenantRejected("initech", node, rack.LayerRegistry, "MacIsLeased", "")
	m.append(t, refused)

	// Nothing has restored the Mac yet: its virtual machines run without a record.
	status := m.report(t, "1h")
	assert.Equal(t, rack.ComplianceIncomplete, status.Verdict, "after the quarantine")
	require.Len(t, status.Violations, 1, "%v", status.Violations)
	assert.Equal(t, "3 records are missing", status.Violations[0].Message)
	assert.Equal(t, []string{nameIn(quarantined)}, status.Violations[0].Records)
	assert.EqualValues(t, 1, status.BrokenChains)

	m.step(12 * time.Hour)
	node.Status.Quarantine = nil
	renewed.Status = rack.MacNodeLeaseStatus{NodeName: node.Name, SerialNumber: node.Spec.SerialNumber, BoundAt: &boundAt}
	floor := metav1.NewTime(boundAt.Add(24 * time.Hour))
	renewed.Status.EarliestReleaseAt = &floor
	bound := NewLeaseBound(renewed, node)
	bound.Details.Reason = ReasonRestored
	m.append(t, bound)
	started := NewInstanceStarted(newInstance(renewed, "one"), renewed, 1)
	started.Details.Reason, started.Details.StartGrantedAt = ReasonRestored, &boundAt
	m.append(t, started)
	m.append(t, ended(node))
	during := m.between(t, boundAt.Time, boundAt.Add(time.Hour))
	assert.Equal(t, rack.ComplianceIncomplete, during.Verdict)
	assert.EqualValues(t, 2, during.Leases, "the restored lease, and the one before, whose end is unknown")
	assert.EqualValues(t, 1, during.MaxVMs, "the restored virtual machine")
	assert.EqualValues(t, 1, during.VMStarts)
	assert.Zero(t, during.Overlaps, "the old lease ended in the lost history")

	m.step(25 * time.Hour)
	assert.Equal(t, rack.ComplianceIncomplete, m.report(t, "7d").Verdict)
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "24h").Verdict, "after the restore")
	assert.Zero(t, m.report(t, "7d").FloorBreaches)
}

// A recorded loss does not break a chain for the reports on later times: they continue a proof.
func TestALossIsProved(t *testing.T) {
	m, node := newMemory(), newNode("mac1")
	m.bind(t, newLease("acme", "old"), node)
	m.append(t, lost(node, m.clock.Now()))
	m.step(time.Hour)
	m.append(t, ended(node))
	m.step(time.Hour)
	everything := Everything(m.clock.Now())
	findings, proof, err := FindAndProve(t.Context(), m.source(), m.anchors(), everything)
	require.NoError(t, err)
	require.NotNil(t, proof)
	assert.Equal(t, []int64{1}, findings.Lost)

	later, _, err := proof.Find(t.Context(), Records(), m.anchors(), everything)
	require.NoError(t, err)
	assert.Equal(t, findings, later)

	// A chain that is also broken otherwise does not count as lost.
	m.remove(t, "c07mac1-000000000002")
	findings, proof, err = FindAndProve(t.Context(), m.source(), m.anchors(), everything)
	require.NoError(t, err)
	assert.Nil(t, proof)
	assert.Equal(t, []int64{0}, findings.Lost)
	assert.EqualValues(t, 1, findings.Reports[0].BrokenChains)
}

// If all records before the loss are lost, it has no known beginning.
func TestReportOfALossOfUnknownBeginning(t *testing.T) {
	m, node := newMemory(), newNode("mac1")
	m.append(t, NewCrossTenantRejected("initech", node, rack.LayerRegistry, "MacIsLeased", ""))
	m.step(time.Hour)
	m.append(t, lost(node, time.Time{}))
	m.step(time.Hour)
	assert.Equal(t, rack.ComplianceIncomplete, m.between(t, start.Add(-48*time.Hour), start.Add(-24*time.Hour)).Verdict)
	m.append(t, lost(node, time.Time{})) // etcd is lost once more
	m.step(time.Hour)
	m.append(t, ended(node))
	m.step(25 * time.Hour)
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "24h").Verdict, "both have ended")
	assert.Len(t, m.report(t, "7d").Violations, 2)

	// A quarantine for another reason that ends meanwhile does not end the loss.
	m.append(t, lost(node, m.clock.Now()))
	m.step(time.Hour)
	m.append(t, NewNodeRecovered(node, "Rebooted", ""))
	m.step(25 * time.Hour)
	assert.Equal(t, rack.ComplianceIncomplete, m.report(t, "24h").Verdict)
}
