package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

// A Mac that has seen records that the chain does not have makes the reports incomplete for the
// time of the loss, and for no other time.
func TestReportOfLostHistory(t *testing.T) {
	m := newMemory()
	node := newNode("mac1")
	m.bind(t, newLease("acme", "old"), node)
	m.step(48 * time.Hour)
	node.Status.Quarantine = &rack.Quarantine{Reason: "LedgerBehind", Message: "3 records are missing"}
	record := NewNodeQuarantined(node)
	record.Details.WitnessedSequence, record.Details.WitnessedHash = 4, "d"
	m.append(t, record)
	assert.Equal(t, record.Hash, Hash(record), "the hash covers what the Mac has seen")
	changed := record.DeepCopy()
	changed.Details.WitnessedSequence = 5
	assert.NotEqual(t, record.Hash, Hash(changed))

	renewed := newLease("globex", "new")
	m.bind(t, renewed, node) // restored
	m.step(25 * time.Hour)
	m.release(t, renewed)
	m.step(25 * time.Hour)

	status := m.report(t, "7d")
	assert.Equal(t, rack.ComplianceIncomplete, status.Verdict)
	require.Len(t, status.Violations, 1, "%v", status.Violations)
	assert.Equal(t, "3 records are missing", status.Violations[0].Message)
	assert.Equal(t, []string{nameIn(record)}, status.Violations[0].Records)
	assert.EqualValues(t, 1, status.BrokenChains)
	assert.Zero(t, status.Overlaps, "the old lease ended in the lost history")
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "24h").Verdict, "after the loss")

	empty := newMemory()
	empty.append(t, record.DeepCopy())
	empty.step(time.Hour)
	assert.Equal(t, rack.ComplianceIncomplete, empty.report(t, "24h").Verdict, "all records before are lost")
}
