package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// leases returns the leases of a ledger by name.
func (m *memory) leases(t *testing.T, anchors Anchors) map[string]Lease {
	t.Helper()
	findings, err := Find(t.Context(), m.source(), anchors, Everything(m.clock.Now()))
	require.NoError(t, err)
	leases := map[string]Lease{}
	for _, l := range findings.Leases {
		require.NotContains(t, leases, l.Reference.Name, "each lease is there once")
		leases[l.Reference.Name] = l
	}
	return leases
}

func TestFindLeases(t *testing.T) {
	leases := history(t).leases(t, nil)
	require.Len(t, leases, 3)

	first := leases["first"]
	assert.Equal(t, start, first.BoundAt)
	assert.Equal(t, start.Add(24*time.Hour), first.Floor)
	assert.Equal(t, start.Add(2*time.Hour), first.DeletedAt)
	assert.Equal(t, start.Add(24*time.Hour), first.ReleasedAt)
	assert.Equal(t, rack.AuditReference{Namespace: "acme", Name: "first", UID: "acme-first"}, first.Reference)
	assert.Equal(t, "C07MAC1", first.Chassis.SerialNumber)
	assert.Equal(t, []string{"acme/c07mac1-000000000001", "acme/c07mac1-000000000004", "acme/c07mac1-000000000007"}, first.Records())
	assert.Empty(t, first.Unproven)

	other := leases["other"]
	assert.Equal(t, start.Add(time.Hour), other.BoundAt)
	assert.Zero(t, other.ReleasedAt, "it continues")
	assert.Zero(t, other.DeletedAt)
	assert.Equal(t, []string{"acme/c07mac2-000000000001"}, other.Records())
}

func TestFindLengthenedLease(t *testing.T) {
	m := newMemory()
	lease, node := newLease("acme", "build"), newNode("mac1")
	lease.Spec.ClassName = "base"
	m.bind(t, lease, node)
	for _, days := range []int{2, 3} {
		m.step(time.Hour)
		floor := metav1.NewTime(start.Add(time.Duration(days) * 24 * time.Hour))
		before := lease.Status.EarliestReleaseAt
		lease.Status.EarliestReleaseAt = &floor
		m.append(t, NewFloorLengthened(lease, before))
	}
	got := m.leases(t, nil)["build"]
	assert.Equal(t, start.Add(72*time.Hour), got.Floor)
	assert.Equal(t, []string{"acme/c07mac1-000000000001", "acme/c07mac1-000000000003"}, got.Records(), "the last change of the floor")
	assert.Equal(t, "base", got.ClassName)
}

// Only the time that the remaining records prove counts.
func TestFindLeasesInBrokenChains(t *testing.T) {
	t.Run("the release is missing", func(t *testing.T) {
		m := history(t)
		m.remove(t, "c07mac1-000000000007")
		first := m.leases(t, m.anchors())["first"]
		assert.Equal(t, unprovenRecords, first.Unproven)
		assert.Equal(t, start.Add(2*time.Hour), first.ReleasedAt, "the time of the last record before the gap")
		assert.Equal(t, start.Add(24*time.Hour), first.BillableUntil(), "the floor is proven by the binding")
		assert.Empty(t, m.leases(t, m.anchors())["second"].Unproven)
	})
	t.Run("the last record of a running lease was edited", func(t *testing.T) {
		m := history(t)
		m.find(t, "c07mac2-000000000004").Details.Message = "x"
		other := m.leases(t, m.anchors())["other"]
		assert.Equal(t, unprovenRecords, other.Unproven)
		assert.Equal(t, start.Add(time.Hour), other.ReleasedAt, "it does not count until now")
	})
	t.Run("the binding is missing", func(t *testing.T) {
		m := history(t)
		m.remove(t, "c07mac1-000000000001")
		first := m.leases(t, nil)["first"]
		assert.Equal(t, unprovenBinding, first.Unproven)
		assert.Equal(t, start.Add(time.Hour), first.BoundAt, "the time of its first record")
	})
	t.Run("the binding is missing, but a later record has its time", func(t *testing.T) {
		m := history(t)
		m.remove(t, "c07mac1-000000000001", "c07mac1-000000000002", "c07mac1-000000000003", "c07mac1-000000000004", "c07mac1-000000000005", "c07mac1-000000000006")
		first := m.leases(t, nil)["first"]
		assert.Empty(t, first.Unproven)
		assert.Equal(t, start, first.BoundAt)
	})
	t.Run("a record in the middle of a lease is missing", func(t *testing.T) {
		m := history(t)
		m.remove(t, "c07mac1-000000000005")
		first := m.leases(t, m.anchors())["first"]
		assert.Equal(t, unprovenRecords, first.Unproven)
		assert.Equal(t, start.Add(24*time.Hour), first.ReleasedAt)
	})
}

// Records of an auditor's file can have any content.
func TestFindLeaseWithoutReference(t *testing.T) {
	m := history(t)
	m.rewrite(t, "c07mac1-000000000008", func(r *rack.AuditRecord) { r.Lease = nil })
	assert.Contains(t, m.leases(t, nil), "")
}
