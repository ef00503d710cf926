package ledger

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

func TestReportOfHonestHistory(t *testing.T) {
	m := history(t)
	now := m.clock.Now()
	since := metav1.NewTime(start)
	honest := rack.ComplianceReportStatus{
		Verdict: rack.ComplianceCompliant,
		From:    metav1.NewTime(now.Add(-7 * 24 * time.Hour)), To: metav1.NewTime(now), CoveredSince: &since,
		Records: 15, Chassis: 2, Leases: 3, VMStarts: 4, MaxVMs: 2, Rejected: 42,
	}
	assert.Equal(t, honest, m.report(t, "7d"))
	assert.Equal(t, honest, reportOn(t, m.source(), nil, "7d", now), "without anchors")
}

func TestReportFindsWhereBranchesPart(t *testing.T) {
	m := history(t)
	previous := m.find(t, "c07mac1-000000000007").Hash
	for sequence := int64(8); sequence <= 11; sequence++ {
		twin := m.find(t, Name("c07mac1", sequence)).DeepCopy()
		twin.Tenant, twin.Namespace, twin.PreviousHash = "initech", "initech", previous
		twin.Hash = Hash(twin)
		previous = twin.Hash
		m.records = append(m.records, twin)
	}
	status := reportOn(t, m.source(), nil, "7d", m.clock.Now())
	require.Len(t, status.Violations, 1, status.Violations)
	assert.Equal(t, []string{"globex/c07mac1-000000000008", "initech/c07mac1-000000000008"}, status.Violations[0].Records)
	assert.Equal(t, rack.ComplianceIncomplete, status.Verdict)

	status = m.report(t, "7d")
	require.Len(t, status.Violations, 2, "the last record of the branch is not the head's, besides")
	assert.Contains(t, status.Violations[1].Message, "initech/c07mac1-000000000011 was replaced: the head")
	assert.Equal(t, int64(1), status.BrokenChains)
}

// TestAForkHidesNothing checks that a forked stretch of a chain hides nothing from the windows in
// it: the true branch is unknown.
func TestAForkHidesNothing(t *testing.T) {
	m := newMemory()
	lease, node := newLease("acme", "build"), newNode("mac1")
	add := func(day int, record *rack.AuditRecord) {
		m.clock.SetTime(time.Date(2026, 8, day, 12, 0, 0, 0, time.UTC))
		m.append(t, record)
	}
	m.bind(t, lease, node) // on August 1st
	add(3, NewInstanceStarted(newInstance(lease, "vm-a"), lease, 1))
	add(5, NewInstanceStarted(newInstance(lease, "vm-b"), lease, 2))
	add(11, NewInstanceStarted(newInstance(lease, "vm-c"), lease, 3))
	add(13, NewInstanceStopped(newInstance(lease, "vm-c"), lease, 2))
	add(21, NewInstanceStopped(newInstance(lease, "vm-b"), lease, 1))
	add(25, NewInstanceStopped(newInstance(lease, "vm-a"), lease, 0))
	m.clock.SetTime(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, rack.ComplianceViolated, m.report(t, "2026-08-10..2026-08-15").Verdict)

	previous := ""
	for sequence := int64(3); sequence <= 5; sequence++ { // August 5th to 13th
		twin := m.find(t, Name("c07mac1", sequence)).DeepCopy()
		twin.Details.Message = "twin"
		if previous != "" {
			twin.PreviousHash = previous
		}
		twin.Hash = Hash(twin)
		previous = twin.Hash
		m.records = append(m.records, twin)
	}
	for window, want := range map[string]rack.ComplianceVerdict{
		"2026-08-02..2026-08-05": rack.ComplianceCompliant,
		"2026-08-05..2026-08-06": rack.ComplianceIncomplete, // where the branches part
		"2026-08-06..2026-08-10": rack.ComplianceIncomplete, // where there is no record, but a fork
		"2026-08-10..2026-08-15": rack.ComplianceIncomplete, // where the violation was
		"2026-08-13..2026-08-14": rack.ComplianceIncomplete, // at the last pair
		"2026-08-15..2026-08-20": rack.ComplianceIncomplete, // before one record is alone in its place
		"2026-08-22..2026-08-30": rack.ComplianceCompliant,
		"2026-08-01..2026-09-01": rack.ComplianceIncomplete,
	} {
		status := m.report(t, window)
		assert.Equal(t, want, status.Verdict, window)
		if want == rack.ComplianceIncomplete {
			assert.Equal(t, int64(1), status.BrokenChains, window)
			if assert.Len(t, status.Violations, 1, "once a window: %s", window) {
				assert.Contains(t, status.Violations[0].Message, "have the same sequence number; the chain was forked")
			}
		}
	}

	for _, end := range []int64{6, 7} { // The last record that is there is one of a pair.
		m.remove(t, Name("c07mac1", end))
	}
	assert.Equal(t, rack.ComplianceIncomplete, reportOn(t, m.source(), nil, "2026-08-22..2026-08-30", m.clock.Now()).Verdict)
}

func TestReportWithoutAnchorsBeginsWithTheFirstRecord(t *testing.T) {
	m := history(t)
	m.remove(t, "c07mac1-000000000001", "c07mac1-000000000002", "c07mac1-000000000003", "c07mac2-000000000001")
	status := reportOn(t, m.source(), nil, "7d", m.clock.Now())
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict, status.Violations)
	assert.Equal(t, int64(3), status.Leases, "leases whose binding is not there are known from what they did")
	assert.Equal(t, metav1.NewTime(start.Add(2*time.Hour)), *status.CoveredSince, "since when both chains are there")
}

// TestReportAfterMissingRecords checks that unknown states prove no violation.
func TestReportAfterMissingRecords(t *testing.T) {
	missing := func(t *testing.T, m *memory, names ...string) rack.ComplianceReportStatus {
		t.Helper()
		m.remove(t, names...)
		status := m.report(t, "7d")
		require.Len(t, status.Violations, 1, status.Violations)
		assert.Equal(t, string(rules.UnbrokenLedger), status.Violations[0].Rule)
		return status
	}
	t.Run("stops", func(t *testing.T) {
		m := newMemory()
		lease := newLease("acme", "build")
		m.bind(t, lease, newNode("mac1"))
		for range 2 {
			m.append(t, NewInstanceStarted(newInstance(lease, "a"), lease, 1))
			m.append(t, NewInstanceStarted(newInstance(lease, "b"), lease, 2))
			m.append(t, NewInstanceStopped(newInstance(lease, "a"), lease, 1))
			m.append(t, NewInstanceStopped(newInstance(lease, "b"), lease, 0))
		}
		m.append(t, NewInstanceStarted(newInstance(lease, "c"), lease, 1))
		m.append(t, NewInstanceStarted(newInstance(lease, "d"), lease, 2))
		status := missing(t, m, "c07mac1-000000000008", "c07mac1-000000000009")
		assert.Equal(t, int64(2), status.MaxVMs)
		assert.Equal(t, int64(1), status.Leases)
	})
	t.Run("a release", func(t *testing.T) {
		m := newMemory()
		lease := newLease("acme", "build")
		m.bind(t, lease, newNode("mac1"))
		m.step(24 * time.Hour)
		m.release(t, lease)
		m.append(t, NewInstanceStarted(newInstance(newLease("", ""), "x"), nil, 1)) // of its own chain: no Mac
		next := newLease("globex", "next")
		m.bind(t, next, newNode("mac1"))
		status := missing(t, m, "c07mac1-000000000002")
		assert.Equal(t, int64(2), status.Leases)
		m.step(24 * time.Hour)
		m.release(t, next)
		assert.Len(t, m.report(t, "7d").Violations, 1)
	})
	t.Run("a binding, and the lease is named without its UID", func(t *testing.T) {
		m := newMemory()
		lease, next := newLease("acme", "build"), newLease("globex", "next")
		m.append(t, NewNodeRecovered(newNode("mac1"), "", ""))
		m.bind(t, lease, newNode("mac1"))
		m.append(t, NewInstanceStarted(newInstance(lease, "a"), nil, 1))
		m.append(t, NewInstanceStopped(newInstance(lease, "a"), nil, 0))
		m.step(24 * time.Hour)
		m.release(t, lease)
		m.bind(t, next, newNode("mac1"))
		status := missing(t, m, "c07mac1-000000000002")
		assert.Equal(t, int64(2), status.Leases)
	})
	t.Run("a binding, and the lease is not named", func(t *testing.T) {
		m := newMemory()
		lease := newLease("acme", "build")
		m.append(t, NewNodeRecovered(newNode("mac1"), "", ""))
		m.bind(t, lease, newNode("mac1"))
		started := NewInstanceStarted(newInstance(lease, "a"), nil, 1)
		started.Lease = nil
		m.append(t, started)
		missing(t, m, "c07mac1-000000000002")
	})
}

// TestReportOfATenantsChain checks that records without a Mac do not count for any Mac.
func TestReportOfATenantsChain(t *testing.T) {
	m := newMemory()
	pending := newLease("acme", "pending")
	m.append(t, NewInstanceRejected(newInstance(pending, "a"), pending, rack.LayerRegistry, "NotBound", ""))
	m.append(t, NewLeaseBound(pending, &rack.MacNode{}))
	m.append(t, NewLeaseBound(newLease("acme", "other"), &rack.MacNode{}))
	status := m.report(t, "24h")
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict, status.Violations)
	assert.Equal(t, int64(3), status.Records)
	assert.Equal(t, int64(1), status.Rejected)
	assert.Zero(t, status.Chassis)
	assert.Zero(t, status.Leases)
}

func TestReportFollowsCheckpoint(t *testing.T) {
	m := history(t)
	checkpoint := m.find(t, "c07mac1-000000000007")
	at := func(record *rack.AuditRecord) *Head {
		return &Head{Sequence: record.Sequence, Hash: record.Hash, Time: record.Time.Time}
	}
	expired := []string{"c07mac1-000000000001", "c07mac1-000000000002", "c07mac1-000000000003", "c07mac1-000000000004",
		"c07mac1-000000000005", "c07mac1-000000000006", "c07mac1-000000000007"}
	for name, test := range map[string]struct {
		expired    int
		checkpoint *Head
		message    string
	}{
		"all expired":                  {7, at(checkpoint), ""},
		"some still there":             {4, at(checkpoint), ""},
		"no checkpoint":                {7, nil, "records 1 to 7 are missing before"},
		"an older checkpoint":          {7, at(m.find(t, "c07mac1-000000000005")), "records 6 to 7 are missing before"},
		"a checkpoint of another":      {7, &Head{Sequence: 7, Hash: "00"}, "the checkpoint of its chain has another hash"},
		"that was there, of another":   {4, &Head{Sequence: 7, Hash: "00"}, "the checkpoint of its chain has another hash"},
		"beyond the end of the record": {7, &Head{Sequence: 7, Hash: checkpoint.Hash, Time: start}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := history(t)
			m.remove(t, expired[:test.expired]...)
			anchors := m.anchors()
			anchors["c07mac1"] = Anchor{Head: anchors["c07mac1"].Head, Checkpoint: test.checkpoint}
			status := reportOn(t, m.source(), anchors, "7d", m.clock.Now())
			if test.message == "" {
				assert.Equal(t, rack.ComplianceCompliant, status.Verdict, status.Violations)
				return
			}
			require.Len(t, status.Violations, 1, status.Violations)
			assert.Contains(t, status.Violations[0].Message, test.message)
			assert.Equal(t, rack.ComplianceIncomplete, status.Verdict)
		})
	}
	t.Run("a chain that is expired whole", func(t *testing.T) {
		m := history(t)
		anchors := m.anchors()
		head := anchors["c07mac2"].Head
		m.remove(t, "c07mac2-000000000001", "c07mac2-000000000002", "c07mac2-000000000003", "c07mac2-000000000004")
		anchors["c07mac2"] = Anchor{Head: head, Checkpoint: head}
		assert.Equal(t, rack.ComplianceCompliant, reportOn(t, m.source(), anchors, "7d", m.clock.Now()).Verdict)
	})
}

func TestCheckpoint(t *testing.T) {
	ctx := context.Background()
	m := history(t)
	require.NoError(t, Checkpoint(ctx, m, m.find(t, "c07mac1-000000000007")))
	require.NoError(t, Checkpoint(ctx, m, m.find(t, "c07mac1-000000000003")), "which is expired already")
	assert.Equal(t, int64(7), m.anchors()["c07mac1"].Checkpoint.Sequence)
	assert.Equal(t, int64(11), m.anchors()["c07mac1"].Head.Sequence)
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "7d").Verdict, "before anything is deleted")
	m.remove(t, "c07mac1-000000000001", "c07mac1-000000000002")
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "7d").Verdict, "while records are deleted")

	edited := m.find(t, "c07mac1-000000000009")
	edited.Tenant = "acme"
	assert.ErrorContains(t, Checkpoint(ctx, m, edited), "was edited")

	_, err := NewAnchors(map[string][]byte{"c07mac1": []byte("x")}, nil)
	assert.ErrorContains(t, err, "head of c07mac1")
	_, err = NewAnchors(nil, map[string][]byte{"c07mac1": []byte("x 1 2")})
	assert.ErrorContains(t, err, "checkpoint of c07mac1")
}

func TestReportIsIncompleteOrViolated(t *testing.T) {
	m := history(t)
	m.remove(t, "c07mac1-000000000007")
	m.bind(t, newLease("globex", "intruder"), newNode("mac2"))
	status := m.report(t, "7d")
	assert.Equal(t, rack.ComplianceViolated, status.Verdict, "a proven violation weighs more than a missing record")
	assert.Len(t, status.Violations, 2)
}

func TestReportOnNothing(t *testing.T) {
	status := reportOn(t, Records(), nil, "24h", start)
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict)
	assert.Equal(t, metav1.NewTime(start), *status.CoveredSince, "nothing is covered")
}

func TestReportCountsAllAndDescribesSome(t *testing.T) {
	m := newMemory()
	for range 150 {
		lease := newLease("acme", "short")
		m.bind(t, lease, newNode("mac1"))
		m.step(time.Minute)
		m.release(t, lease)
	}
	status := m.report(t, "24h")
	assert.Equal(t, int64(150), status.FloorBreaches)
	require.Len(t, status.Violations, 100)
	assert.Equal(t, []string{"acme/c07mac1-000000000001", "acme/c07mac1-000000000002"}, status.Violations[0].Records, "the first are described")
}

func TestReportNeedsOrder(t *testing.T) {
	m := history(t)
	slices.Reverse(m.records)
	w, err := ParseWindow("7d", m.clock.Now())
	require.NoError(t, err)
	_, err = Report(context.Background(), Records(m.records...), nil, w)
	assert.ErrorIs(t, err, ErrNotInOrder)

	_, err = Report(context.Background(), Records(&rack.AuditRecord{}), nil, w)
	assert.ErrorContains(t, err, "is not the name of a record")
}

// The order in which chains come does not matter, and neither do names that sort into other chains.
func TestReportIsDeterministic(t *testing.T) {
	m := history(t)
	m.append(t, NewInstanceRejected(newInstance(newLease("a", "l"), "x"), nil, rack.LayerRegistry, "", ""))
	m.append(t, NewInstanceRejected(newInstance(newLease("a-000000000001", "l"), "x"), nil, rack.LayerRegistry, "", ""))
	m.append(t, NewInstanceRejected(newInstance(newLease("a", "l"), "x"), nil, rack.LayerRegistry, "", ""))
	m.bind(t, newLease("globex", "intruder"), newNode("mac2"))
	m.find(t, "c07mac1-000000000008").Tenant = "acme"
	want := m.report(t, "7d")
	require.Len(t, want.Violations, 2)
	assert.Equal(t, want, reportOn(t, Records(m.records...), m.anchors(), "7d", m.clock.Now()), "in the order of writing")
	for range 10 {
		assert.Equal(t, want, m.report(t, "7d"))
	}
}

func TestReportOfManyWindowsIsThatOfEach(t *testing.T) {
	m := history(t)
	m.bind(t, newLease("globex", "intruder"), newNode("mac2"))
	var windows []Window
	names := append([]string{"1h", "2026-08-01..2026-08-02", "2026-08-02..2026-08-03"}, UsualWindows...)
	for _, name := range names {
		w, err := ParseWindow(name, m.clock.Now())
		require.NoError(t, err)
		windows = append(windows, w)
	}
	statuses, err := Report(context.Background(), m.source(), m.anchors(), windows...)
	require.NoError(t, err)
	for i, name := range names {
		assert.Equal(t, m.report(t, name), statuses[i], name)
	}
	_, err = Report(context.Background(), m.source(), nil, make([]Window, 65)...)
	assert.Error(t, err)
}

func TestReportEndsWithItsSource(t *testing.T) {
	broken := errors.New("broken")
	w, err := ParseWindow("7d", start)
	require.NoError(t, err)
	_, err = Report(context.Background(), func(context.Context, func(*rack.AuditRecord) error) error { return broken }, nil, w)
	assert.ErrorIs(t, err, broken)
}

func TestMerge(t *testing.T) {
	m := history(t)
	byNamespace := map[string][]*rack.AuditRecord{}
	_ = m.source()(context.Background(), func(record *rack.AuditRecord) error {
		byNamespace[record.Namespace] = append(byNamespace[record.Namespace], record)
		return nil
	})
	require.Len(t, byNamespace, 3)
	sources := []RecordSource{Records()}
	for _, records := range byNamespace {
		sources = append(sources, Records(records...))
	}
	var want, got []string
	_ = m.source()(context.Background(), func(r *rack.AuditRecord) error { want = append(want, r.Name); return nil })
	require.NoError(t, Merge(sources...)(context.Background(), func(r *rack.AuditRecord) error { got = append(got, r.Name); return nil }))
	assert.Equal(t, want, got)

	enough := errors.New("enough")
	got = nil
	assert.ErrorIs(t, Merge(sources...)(context.Background(), func(r *rack.AuditRecord) error {
		if got = append(got, r.Name); len(got) == 3 {
			return enough
		}
		return nil
	}), enough)
	assert.Equal(t, want[:3], got)

	failing := func(_ context.Context, yield func(*rack.AuditRecord) error) error {
		if err := yield(m.records[0]); err != nil {
			return err
		}
		return enough
	}
	assert.ErrorIs(t, Merge(append(sources, failing)...)(context.Background(), func(*rack.AuditRecord) error { return nil }), enough)
}
