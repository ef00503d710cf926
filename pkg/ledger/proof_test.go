package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

// since returns a source of the records after the first n.
func (m *memory) since(n int) RecordSource {
	return (&memory{records: m.records[n:]}).source()
}

// randomLife records random events of a few Macs, also such that violate rules.
type randomLife struct {
	*memory
	*rand.Rand
	leases []*rack.MacNodeLease
	vms    []*instance.MacOSInstance
}

func (l *randomLife) event(t *testing.T) {
	node := newNode(fmt.Sprintf("mac%d", l.Intn(3)))
	lease, vm := l.leases[l.Intn(len(l.leases))], l.vms[l.Intn(len(l.vms))]
	switch l.Intn(12) {
	case 0, 1:
		lease = newLease([]string{"acme", "globex"}[l.Intn(2)], fmt.Sprintf("lease-%d", len(l.records)))
		l.bind(t, lease, node)
		l.leases = append(l.leases, lease)
	case 2:
		l.release(t, lease)
	case 3:
		l.append(t, NewLeaseHeld(lease, l.clock.Now()))
	case 4, 5:
		vm = newInstance(lease, fmt.Sprintf("vm-%d", len(l.records)))
		l.append(t, NewInstanceStarted(vm, lease, int32(l.Intn(3)+1)))
		l.vms = append(l.vms, vm)
	case 6:
		l.append(t, NewInstanceStopped(vm, lease, int32(l.Intn(3))))
	case 7:
		rejected := NewInstanceRejected(vm, lease, rack.LayerRegistry, []string{"NoFreeSlot", "NoSuchLease"}[l.Intn(2)], "no")
		rejected.Details.Count = int64(l.Intn(4))
		l.append(t, rejected)
	case 8:
		l.append(t, NewInstanceRejected(newInstance(newLease("acme", "unbound"), "vm"), nil, rack.LayerRegistry, "NoSuchLease", "no"))
	case 9:
		if l.Intn(4) == 0 {
			l.append(t, lost(node, l.clock.Now().Add(-time.Duration(l.Intn(48))*time.Hour)))
		}
	case 10, 11:
		l.append(t, ended(node))
	}
}

func (l *randomLife) windows(t *testing.T) []Window {
	var windows []Window
	for _, name := range append([]string{fmt.Sprintf("%dh", l.Intn(300)+1), "2026-08-02..2026-08-03"}, UsualWindows...) {
		w, err := ParseWindow(name, l.clock.Now())
		require.NoError(t, err)
		windows = append(windows, w)
	}
	return append(windows, Everything(l.clock.Now()))
}

// Over random histories, a report that continues a proof equals one on all records.
func TestReportsThatContinueAProof(t *testing.T) {
	violations, continued, leases := 0, 0, 0
	for seed := range int64(300) {
		first := newLease("acme", "first")
		l := &randomLife{memory: newMemory(), Rand: rand.New(rand.NewSource(seed)), leases: []*rack.MacNodeLease{first}}
		l.step(48 * time.Hour)
		l.bind(t, first, newNode("mac0"))
		l.vms = append(l.vms, newInstance(first, "vm"))
		var proof *Proof
		for range 12 {
			for range l.Intn(8) {
				l.step(time.Duration(l.Int63n(int64(20 * time.Hour))))
				l.event(t)
			}
			windows := l.windows(t)
			want, err := Find(t.Context(), l.source(), l.anchors(), windows...)
			require.NoError(t, err)
			var got *Findings
			if proof == nil {
				got, proof, err = FindAndProve(t.Context(), l.source(), l.anchors(), windows...)
			} else {
				continued++
				got, proof, err = proof.Find(t.Context(), l.since(int(proof.Records())), l.anchors(), windows...)
			}
			require.NoError(t, err, "seed %d", seed)
			require.Equal(t, want, got, "seed %d", seed)
			require.NotNil(t, proof)
			require.EqualValues(t, len(l.records), proof.Records())
			violations += len(want.Reports[len(want.Reports)-1].Violations)
			leases = max(leases, len(want.Leases))
		}
	}
	assert.Equal(t, 300*11, continued)
	assert.Positive(t, violations)
	assert.Positive(t, leases)
}

// A report that fails leaves its proof as it was.
func TestAProofSurvivesFailedReports(t *testing.T) {
	m := history(t)
	_, proof, err := FindAndProve(t.Context(), m.source(), m.anchors(), Everything(m.clock.Now()))
	require.NoError(t, err)
	known := len(m.records)
	m.bind(t, newLease("globex", "third"), newNode("mac1"))
	windows := (&randomLife{memory: m, Rand: rand.New(rand.NewSource(1))}).windows(t)
	want, err := Find(t.Context(), m.source(), m.anchors(), windows...)
	require.NoError(t, err)
	unreachable := errors.New("etcd is down")
	for range 2 {
		failing := func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
			return errors.Join(m.since(known)(ctx, yield), unreachable)
		}
		_, _, err = proof.Find(t.Context(), failing, m.anchors(), windows...)
		require.ErrorIs(t, err, unreachable)
		got, _, err := proof.Find(t.Context(), m.since(known), m.anchors(), windows...)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

func TestOutdatedProofs(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, m *memory) (added []*rack.AuditRecord){
		"a head that went back": func(t *testing.T, m *memory) []*rack.AuditRecord {
			record := m.find(t, "c07mac1-000000000010")
			m.keys[HeadKind+"/c07mac1"] = Head{record.Sequence, record.Hash, record.Time.Time}.Encode()
			return nil
		},
		"a head with another hash": func(t *testing.T, m *memory) []*rack.AuditRecord {
			record := m.find(t, "c07mac1-000000000011")
			m.keys[HeadKind+"/c07mac1"] = Head{record.Sequence, Hash(m.records[0]), record.Time.Time}.Encode()
			return nil
		},
		"a head beyond the records": func(t *testing.T, m *memory) []*rack.AuditRecord {
			m.release(t, newLease("acme", "x"))
			return nil
		},
		"a new checkpoint": func(t *testing.T, m *memory) []*rack.AuditRecord {
			require.NoError(t, Checkpoint(t.Context(), m, m.find(t, "c07mac1-000000000002")))
			return nil
		},
		"a record inserted before the last": func(t *testing.T, m *memory) []*rack.AuditRecord {
			return []*rack.AuditRecord{m.find(t, "c07mac1-000000000003")}
		},
		"a second last record": func(t *testing.T, m *memory) []*rack.AuditRecord {
			return []*rack.AuditRecord{m.find(t, "c07mac1-000000000011")}
		},
		"a record that follows another": func(t *testing.T, m *memory) []*rack.AuditRecord {
			record := m.bind(t, newLease("globex", "next"), newNode("mac1")).DeepCopy()
			record.PreviousHash = m.records[0].Hash
			record.Hash = Hash(record)
			m.keys[HeadKind+"/c07mac1"] = Head{record.Sequence, record.Hash, record.Time.Time}.Encode()
			return []*rack.AuditRecord{record}
		},
		"an edited record": func(t *testing.T, m *memory) []*rack.AuditRecord {
			record := m.bind(t, newLease("globex", "next"), newNode("mac1")).DeepCopy()
			record.Tenant = "acme"
			return []*rack.AuditRecord{record}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := history(t)
			everything := Everything(m.clock.Now())
			_, proof, err := FindAndProve(t.Context(), m.source(), m.anchors(), everything)
			require.NoError(t, err)
			_, _, err = proof.Find(t.Context(), Records(), m.anchors(), everything)
			require.NoError(t, err)
			added := change(t, m)
			_, _, err = proof.Find(t.Context(), Records(added...), m.anchors(), everything)
			assert.ErrorIs(t, err, ErrProofOutdated)
		})
	}
}

func TestBrokenChainsAreNotProved(t *testing.T) {
	m := history(t)
	m.remove(t, "c07mac2-000000000002")
	findings, proof, err := FindAndProve(t.Context(), m.source(), m.anchors(), Everything(m.clock.Now()))
	require.NoError(t, err)
	assert.Equal(t, rack.ComplianceIncomplete, findings.Reports[0].Verdict)
	assert.Nil(t, proof)
}

func TestFactLog(t *testing.T) {
	violation := &rack.ComplianceViolation{Message: "x"}
	facts := []fact{
		{kind: chainBegan, span: span{100, 100}},
		{kind: leased, span: span{-5, forever}, mac: true, count: -3},
		{kind: ran, span: span{always, always}, count: forever},
		{kind: violated, span: span{forever, forever}, violation: violation},
		{kind: lostHistory, span: span{forever, forever}, violation: violation},
	}
	var log factLog
	size := 0
	for _, f := range facts {
		size += log.add(f)
	}
	assert.Equal(t, len(log.data)+2*sizeOfViolation, size)
	var read []fact
	clone := log.clone()
	clone.each(func(f fact) {
		f.count = map[bool]int64{false: f.count}[f.violation != nil]
		read = append(read, f)
	})
	assert.Equal(t, facts, read)
}
