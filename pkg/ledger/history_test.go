package ledger

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

// history is two honest days of two Macs; each test spoils it in one way.
//
//	mac1: 1 bound acme, 2 vm-a starts, 3 vm-b starts, 4 held, 5 vm-a stops, 6 vm-b stops, 7 released,
//	      8 bound globex, 9 vm-c starts, 10 vm-c stops, 11 released
//	mac2: 1 bound acme, 2 a third instance refused, 3 a cross-tenant attempt refused, 4 vm-d starts; both continue
func history(t *testing.T) *memory {
	m := newMemory()
	mac1, mac2 := newNode("mac1"), newNode("mac2")
	first, second, other := newLease("acme", "first"), newLease("globex", "second"), newLease("acme", "other")

	m.bind(t, first, mac1)
	a, b := newInstance(first, "vm-a"), newInstance(first, "vm-b")
	m.step(time.Hour)
	m.append(t, NewInstanceStarted(a, first, 1))
	m.append(t, NewInstanceStarted(b, first, 2))
	m.bind(t, other, mac2)
	m.append(t, NewInstanceRejected(newInstance(other, "vm-x"), other, rack.LayerRegistry, "NoFreeSlot", "two run"))
	cross := NewCrossTenantRejected("globex", mac2, rack.LayerRegistry, "SerialBound", "no")
	cross.Details.Count = 41
	m.append(t, cross)
	m.append(t, NewInstanceStarted(newInstance(other, "vm-d"), other, 1))
	m.step(time.Hour)
	m.append(t, NewLeaseHeld(first, m.clock.Now()))
	m.append(t, NewInstanceStopped(a, first, 1))
	m.append(t, NewInstanceStopped(b, first, 0))
	m.step(22 * time.Hour)
	m.release(t, first)

	m.bind(t, second, mac1)
	m.step(time.Hour)
	c := newInstance(second, "vm-c")
	m.append(t, NewInstanceStarted(c, second, 1))
	m.step(time.Hour)
	m.append(t, NewInstanceStopped(c, second, 0))
	m.step(23 * time.Hour)
	m.release(t, second)
	return m
}

// source returns the records in order, as a sorted list of all namespaces gives them.
func (m *memory) source() RecordSource {
	records := slices.Clone(m.records)
	slices.SortStableFunc(records, func(a, b *rack.AuditRecord) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
	})
	return Records(records...)
}

func (m *memory) anchors() Anchors {
	byKind := map[string]map[string][]byte{HeadKind: {}, CheckpointKind: {}}
	for key, value := range m.keys {
		if kind, chain, _ := strings.Cut(key, "/"); byKind[kind] != nil {
			byKind[kind][chain] = value
		}
	}
	anchors, err := NewAnchors(byKind[HeadKind], byKind[CheckpointKind])
	if err != nil {
		panic(err)
	}
	return anchors
}

func (m *memory) report(t *testing.T, window string) rack.ComplianceReportStatus {
	t.Helper()
	return reportOn(t, m.source(), m.anchors(), window, m.clock.Now())
}

func reportOn(t *testing.T, source RecordSource, anchors Anchors, window string, now time.Time) rack.ComplianceReportStatus {
	t.Helper()
	w, err := ParseWindow(window, now)
	require.NoError(t, err)
	statuses, err := Report(context.Background(), source, anchors, w)
	require.NoError(t, err)
	require.Len(t, statuses, 1)
	return statuses[0]
}

func (m *memory) find(t *testing.T, name string) *rack.AuditRecord {
	t.Helper()
	i := slices.IndexFunc(m.records, func(r *rack.AuditRecord) bool { return r.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return m.records[i]
}

func (m *memory) remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		record := m.find(t, name)
		m.records = slices.DeleteFunc(m.records, func(r *rack.AuditRecord) bool { return r == record })
	}
}

// rewrite changes a record and all that follow it in its chain, with hashes that fit: what an
// attacker does who can write to etcd, or what the server records if something did happen.
func (m *memory) rewrite(t *testing.T, name string, change func(*rack.AuditRecord)) {
	t.Helper()
	chain, from, _ := SplitName(name)
	change(m.find(t, name))
	previous := ""
	for sequence := int64(1); ; sequence++ {
		i := slices.IndexFunc(m.records, func(r *rack.AuditRecord) bool { return r.Name == Name(chain, sequence) })
		if i < 0 {
			return
		}
		record := m.records[i]
		if sequence >= from {
			record.PreviousHash = previous
			record.Hash = Hash(record)
			m.keys[HeadKind+"/"+chain] = Head{record.Sequence, record.Hash, record.Time.Time}.Encode()
		}
		previous = record.Hash
	}
}

// withoutNamespaces checks that records are in the ledger, and returns their names.
func withoutNamespaces(t *testing.T, m *memory, records []string) (names []string) {
	t.Helper()
	for _, full := range records {
		i := slices.IndexFunc(m.records, func(r *rack.AuditRecord) bool { return nameIn(r) == full })
		require.GreaterOrEqual(t, i, 0, full)
		names = append(names, m.records[i].Name)
	}
	return names
}
