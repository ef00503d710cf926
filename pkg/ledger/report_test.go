package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
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

func TestReportFindsWhatIsPlanted(t *testing.T) {
	mac := func(name string, sequence ...int64) (names []string) {
		for _, s := range sequence {
			names = append(names, Name("c07"+name, s))
		}
		return names
	}
	for name, test := range map[string]struct {
		spoil   func(*testing.T, *memory)
		verdict rack.ComplianceVerdict
		rule    rules.Rule
		records []string // without namespaces
		message string
		serial  string
	}{
		"two tenants at once": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "intruder")
				m.step(time.Minute)
				m.bind(t, lease, newNode("mac2"))
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac2", 1, 5), "lease globex/intruder (globex-intruder) of globex while lease acme/other (acme-other) of acme had it", "C07MAC2",
		},
		"two leases of one tenant at once": {
			func(t *testing.T, m *memory) { m.bind(t, newLease("acme", "twin"), newNode("mac2")) },
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac2", 1, 5), "had it", "C07MAC2",
		},
		"two leases of one name at once": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "other")
				lease.UID = "made anew"
				m.bind(t, lease, newNode("mac2"))
			},
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac2", 1, 5), "(made anew) of acme while lease acme/other (acme-other) of acme had it", "C07MAC2",
		},
		"an instance of another tenant": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "theirs")
				lease.Status.SerialNumber = "C07MAC2"
				m.append(t, NewInstanceStarted(newInstance(lease, "vm-z"), lease, 2))
			},
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac2", 1, 5), "which acme had leased", "C07MAC2",
		},
		"an instance on a Mac that nobody has leased": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "second")
				lease.Status.SerialNumber = "C07MAC1"
				m.append(t, NewInstanceStarted(newInstance(lease, "late"), lease, 1))
			},
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac1", 12), "which nobody had leased", "C07MAC1",
		},
		"an instance that outlives its lease into the next": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "other")
				lease.Status.SerialNumber = "C07MAC2"
				m.release(t, lease)
				m.bind(t, newLease("globex", "next"), newNode("mac2"))
			},
			rack.ComplianceViolated, rules.OneTenantPerChassis, mac("mac2", 4, 6), "instance acme/vm-d (acme-vm-d) of acme still ran", "C07MAC2",
		},
		"three virtual machines": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "other")
				lease.Status.NodeName, lease.Status.SerialNumber = "mac2", "C07MAC2"
				m.append(t, NewInstanceStarted(newInstance(lease, "vm-e"), lease, 2))
				m.append(t, NewInstanceStarted(newInstance(lease, "vm-f"), lease, 2)) // a server that cannot count
				m.append(t, NewInstanceStarted(newInstance(lease, "vm-g"), lease, 2))
				m.append(t, NewInstanceStopped(newInstance(lease, "vm-g"), lease, 2))
				m.append(t, NewInstanceStopped(newInstance(lease, "vm-f"), lease, 2))
			},
			rack.ComplianceViolated, rules.TwoVMsPerChassis, mac("mac2", 4, 5, 6), "ran 3 virtual machines at once; 2 is the most", "C07MAC2",
		},
		"three virtual machines, as the server says": {
			func(t *testing.T, m *memory) {
				m.rewrite(t, "c07mac1-000000000009", func(r *rack.AuditRecord) { *r.Details.LocalVMs = 3 })
			},
			rack.ComplianceViolated, rules.TwoVMsPerChassis, mac("mac1", 9), "ran 3 virtual machines at once", "C07MAC1",
		},
		"a release before the floor": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				m.step(24*time.Hour - time.Second)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 13), "1s before its floor", "C07MAC1",
		},
		"a release before a longer floor": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				lease.Status.EarliestReleaseAt = &metav1.Time{Time: m.clock.Now().Add(48 * time.Hour)}
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
		},
		"a release before a floor that was moved back": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				m.step(time.Hour)
				now := metav1.NewTime(m.clock.Now())
				lease.Status.BoundAt = &metav1.Time{Time: now.Add(-24 * time.Hour)}
				lease.Status.EarliestReleaseAt = &now
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
		},
		"a release before the floor that the tenant was told when it was held": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				floor := lease.Status.EarliestReleaseAt
				lease.Status.EarliestReleaseAt = &metav1.Time{Time: floor.Add(24 * time.Hour)}
				m.append(t, NewLeaseHeld(lease, m.clock.Now()))
				lease.Status.EarliestReleaseAt = floor
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 14), "23h0m0s before its floor", "C07MAC1",
		},
		"a release before a floor that was lengthened": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				floor := lease.Status.EarliestReleaseAt
				lease.Status.EarliestReleaseAt = &metav1.Time{Time: floor.Add(24 * time.Hour)}
				m.append(t, NewFloorLengthened(lease, floor))
				lease.Status.EarliestReleaseAt = floor
				m.append(t, NewLeaseHeld(lease, m.clock.Now()))
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 15), "23h0m0s before its floor", "C07MAC1",
		},
		"a release before 24 hours with a floor that was too short": {
			func(t *testing.T, m *memory) {
				lease, node := newLease("acme", "third"), newNode("mac1")
				now := metav1.NewTime(m.clock.Now())
				lease.Status = rack.MacNodeLeaseStatus{BoundAt: &now, EarliestReleaseAt: &metav1.Time{Time: now.Add(time.Hour)}, SerialNumber: "C07MAC1"}
				m.append(t, NewLeaseBound(lease, node))
				m.step(2 * time.Hour)
				m.release(t, lease)
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 13), "22h0m0s before its floor", "C07MAC1",
		},
		"a release before the floor that says it was later": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				m.step(time.Hour)
				m.append(t, NewLeaseReleased(lease, m.clock.Now().Add(24*time.Hour), nil))
			},
			rack.ComplianceViolated, rules.TwentyFourHours, mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
		},
		"a missing record": {
			func(t *testing.T, m *memory) { m.remove(t, "c07mac1-000000000007") },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 6, 8), "record 7 is missing", "C07MAC1",
		},
		"several missing records": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 2, 3, 4, 5)...) },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 1, 6), "records 2 to 5 are missing", "C07MAC1",
		},
		"the first records missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 1, 2)...) },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 3), "records 1 to 2 are missing before", "C07MAC1",
		},
		"the last records missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 10, 11)...) },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 9), "records 10 to 11 are missing at the end", "C07MAC1",
		},
		"a whole chain missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac2", 1, 2, 3, 4)...) },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, nil, "records 1 to 4 are missing at the end of the chain c07mac2", "",
		},
		"an edited record": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Tenant = "acme" },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited record that is moved with its tenant": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000008").Tenant = "acme"
				m.find(t, "c07mac1-000000000008").Namespace = "acme"
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited record that is dated back": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000008").Time = metav1.NewMicroTime(start.Add(-time.Hour))
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited first record": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000001").Chassis.SerialNumber = "ANOTHER" },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 1), "was edited", "C07MAC1",
		},
		"an edited last record": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000011").Details.ReleasedAt = nil
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 11), "was edited", "C07MAC1",
		},
		"an edited hash": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Hash = "0000" },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited sequence": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Sequence = 9 },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8), "was edited", "C07MAC1",
		},
		"a replaced record": { // with a hash that fits its content
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac1-000000000001")
				record.Tenant, record.Namespace = "globex", "globex"
				record.Hash = Hash(record)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 1, 2), "does not follow", "C07MAC1",
		},
		"a replaced last record": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac1-000000000011")
				record.Details.ReleasedAt = &metav1.Time{Time: start}
				record.Hash = Hash(record)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 11), "was replaced: the head", "C07MAC1",
		},
		"a record in another's place": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac2-000000000004").DeepCopy()
				m.remove(t, "c07mac1-000000000010")
				record.Name = "c07mac1-000000000010"
				m.records = append(m.records, record)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 10), "is misplaced: it says that it is c07mac2-000000000004", "C07MAC1",
		},
		"a record in another namespace": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000010").Namespace = "acme" },
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 10), "belongs in namespace globex", "C07MAC1",
		},
		"a first record that had one before it": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac2-000000000001")
				record.PreviousHash = "00"
				record.Hash = Hash(record)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac2", 1), "is the first of its chain", "C07MAC2",
		},
		"a forked chain": {
			func(t *testing.T, m *memory) {
				twin := m.find(t, "c07mac1-000000000008").DeepCopy()
				twin.Tenant, twin.Namespace = "initech", "initech"
				twin.Hash = Hash(twin)
				m.records = append(m.records, twin)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8, 8), "forked", "C07MAC1",
		},
		"a forked chain, the false record first": {
			func(t *testing.T, m *memory) {
				twin := m.find(t, "c07mac1-000000000008").DeepCopy()
				twin.Tenant, twin.Namespace = "aaa", "aaa"
				twin.Hash = Hash(twin)
				m.records = append([]*rack.AuditRecord{twin}, m.records...)
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8, 8), "forked", "C07MAC1",
		},
		"a record out of time order": {
			func(t *testing.T, m *memory) {
				m.rewrite(t, "c07mac1-000000000009", func(r *rack.AuditRecord) {
					r.Time = metav1.NewMicroTime(r.Time.Add(-2 * time.Hour))
				})
			},
			rack.ComplianceIncomplete, rules.UnbrokenLedger, mac("mac1", 8, 9), "before the record that it follows", "C07MAC1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := history(t)
			test.spoil(t, m)
			status := m.report(t, "7d")
			require.Len(t, status.Violations, 1, "%v", status.Violations)
			violation := status.Violations[0]
			assert.Equal(t, string(test.rule), violation.Rule)
			assert.Equal(t, test.serial, violation.SerialNumber)
			assert.Contains(t, violation.Message, test.message)
			assert.False(t, violation.Time.Time.Before(start) || violation.Time.After(m.clock.Now()), violation.Time)
			assert.Equal(t, test.records, withoutNamespaces(t, m, violation.Records))
			assert.Equal(t, test.verdict, status.Verdict)
			assert.Equal(t, test.rule == rules.OneTenantPerChassis, status.Overlaps == 1)
			assert.Equal(t, test.rule == rules.TwentyFourHours, status.FloorBreaches == 1)
			assert.Equal(t, test.rule == rules.UnbrokenLedger, status.BrokenChains == 1)
			assert.Equal(t, test.rule == rules.TwoVMsPerChassis, status.MaxVMs > 2)
		})
	}
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
				assert.Contains(t, status.Violations[0].Message, "have the same place in the chain: it was forked")
			}
		}
	}

	for _, end := range []int64{6, 7} { // The last record that is there is one of a pair.
		m.remove(t, Name("c07mac1", end))
	}
	assert.Equal(t, rack.ComplianceIncomplete, reportOn(t, m.source(), nil, "2026-08-22..2026-08-30", m.clock.Now()).Verdict)
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

func TestReportClips(t *testing.T) {
	at := func(d time.Duration) time.Time { return start.Add(d) }
	setUp := func(t *testing.T) *memory {
		m := newMemory()
		one, two, three := newNode("mac1"), newNode("mac2"), newNode("mac3")
		kept, gone, late := newLease("acme", "kept"), newLease("acme", "gone"), newLease("globex", "late")
		m.bind(t, kept, one)
		vm := newInstance(kept, "vm")
		m.append(t, NewInstanceStarted(vm, kept, 1))
		m.bind(t, gone, two)
		m.append(t, NewNodeQuarantined(three))
		m.clock.SetTime(at(30 * time.Hour))
		m.release(t, gone)
		m.clock.SetTime(at(10 * 24 * time.Hour))
		m.bind(t, late, two)
		m.clock.SetTime(at(10*24*time.Hour + time.Hour))
		return m
	}
	t.Run("what began before and goes on", func(t *testing.T) {
		status := setUp(t).report(t, "24h")
		assert.Equal(t, rack.ComplianceCompliant, status.Verdict)
		assert.Equal(t, int64(1), status.Records)
		assert.Equal(t, int64(2), status.Chassis, "the Mac that is leased counts, though nothing was recorded of it")
		assert.Equal(t, int64(2), status.Leases)
		assert.Equal(t, int64(0), status.VMStarts)
		assert.Equal(t, int64(1), status.MaxVMs)
		assert.Nil(t, status.CoveredSince)
	})
	t.Run("what begins after", func(t *testing.T) {
		m := setUp(t)
		m.bind(t, newLease("globex", "intruder"), newNode("mac1"))
		status := m.report(t, "2026-08-01..2026-08-03")
		assert.Equal(t, rack.ComplianceCompliant, status.Verdict)
		assert.Equal(t, int64(5), status.Records)
		assert.Equal(t, int64(3), status.Chassis)
		assert.Equal(t, int64(2), status.Leases)
		assert.Equal(t, metav1.NewTime(start), *status.CoveredSince, "the ledger began at noon")
		assert.Equal(t, metav1.Date(2026, 8, 3, 0, 0, 0, 0, time.UTC), status.To)
	})
	t.Run("what ended before", func(t *testing.T) {
		status := setUp(t).report(t, "2026-08-05..2026-08-06")
		assert.Equal(t, int64(0), status.Records)
		assert.Equal(t, int64(1), status.Chassis)
		assert.Equal(t, int64(1), status.Leases)
	})
	t.Run("violations", func(t *testing.T) {
		m := newMemory()
		node := newNode("mac1")
		first, second, third := newLease("acme", "first"), newLease("globex", "second"), newLease("acme", "third")
		m.bind(t, first, node)
		m.clock.SetTime(at(2 * 24 * time.Hour))
		m.bind(t, second, node) // on 3 August two tenants have the Mac,
		m.clock.SetTime(at(5 * 24 * time.Hour))
		m.release(t, first) // until the 6th
		m.release(t, second)
		m.clock.SetTime(at(8 * 24 * time.Hour))
		m.bind(t, third, node)
		var vms []string
		for i := range 3 { // three run from the 9th
			vm := newInstance(third, fmt.Sprint("vm", i))
			vms = append(vms, vm.Name)
			m.append(t, NewInstanceStarted(vm, third, int32(i+1)))
		}
		m.clock.SetTime(at(10 * 24 * time.Hour))
		m.append(t, NewInstanceStopped(newInstance(third, vms[0]), third, 2)) // to the 11th
		m.clock.SetTime(at(40 * 24 * time.Hour))
		for window, want := range map[string][]rules.Rule{
			"2026-08-01..2026-08-03": nil,
			"2026-08-03..2026-08-04": {rules.OneTenantPerChassis},
			"2026-08-04..2026-08-05": {rules.OneTenantPerChassis},
			"2026-08-06..2026-08-07": {rules.OneTenantPerChassis},
			"2026-08-07..2026-08-09": nil,
			"2026-08-09..2026-08-10": {rules.TwoVMsPerChassis},
			"2026-08-10..2026-08-11": {rules.TwoVMsPerChassis},
			"2026-08-11..2026-08-12": {rules.TwoVMsPerChassis},
			"2026-08-12..2026-08-13": nil,
			"24h":                    nil,
			"90d":                    {rules.OneTenantPerChassis, rules.TwoVMsPerChassis},
		} {
			var found []rules.Rule
			status := m.report(t, window)
			for _, v := range status.Violations {
				found = append(found, rules.Rule(v.Rule))
			}
			assert.Equal(t, want, found, window)
			assert.Equal(t, len(want) > 0, status.Verdict == rack.ComplianceViolated, window)
		}
		assert.Equal(t, int64(2), m.report(t, "24h").MaxVMs)
	})
	t.Run("a violation ends with its last opponent, or its subject", func(t *testing.T) {
		for name, test := range map[string]struct {
			released []string // one a day, from the 4th of August
			until    int      // the last day on which it shows
		}{
			"nobody":              {nil, 9},
			"the first":           {[]string{"a"}, 9},
			"the first, second":   {[]string{"a", "b"}, 5},
			"the third":           {[]string{"c"}, 9}, // the first and the second continue
			"the third, second":   {[]string{"c", "b"}, 5},
			"the second, third":   {[]string{"b", "c"}, 5},
			"all, the third last": {[]string{"b", "a", "c"}, 5},
		} {
			m := newMemory()
			node := newNode("mac1")
			leases := map[string]*rack.MacNodeLease{}
			for _, tenant := range []string{"a", "b", "c"} {
				leases[tenant] = newLease(tenant, "lease")
				m.bind(t, leases[tenant], node)
				m.step(time.Hour)
			}
			for i, tenant := range test.released {
				m.clock.SetTime(at(time.Duration(3+i) * 24 * time.Hour))
				m.release(t, leases[tenant])
			}
			m.clock.SetTime(at(12 * 24 * time.Hour))
			for day := 3; day < 9; day++ {
				status := m.report(t, fmt.Sprintf("2026-08-%02d..2026-08-%02d", day, day+1))
				assert.Equal(t, day <= test.until, status.Verdict == rack.ComplianceViolated, "%s: 8-%d: %v", name, day, status.Violations)
			}
		}
	})
	t.Run("a lease whose binding is not there", func(t *testing.T) {
		m := newMemory()
		lease := newLease("acme", "build")
		m.bind(t, lease, newNode("mac1"))
		m.clock.SetTime(at(5 * 24 * time.Hour))
		m.release(t, lease)
		m.remove(t, "c07mac1-000000000001")
		m.step(24 * time.Hour)
		assert.Equal(t, int64(1), reportOn(t, m.source(), nil, "2026-08-03..2026-08-04", m.clock.Now()).Leases)
		assert.Equal(t, int64(0), reportOn(t, m.source(), nil, "2026-08-07..2026-08-08", m.clock.Now()).Leases)
	})
	t.Run("breaks", func(t *testing.T) {
		daily := func() *memory {
			m := newMemory()
			for range 20 {
				m.append(t, NewNodeQuarantined(newNode("mac1")))
				m.step(24 * time.Hour)
			}
			return m
		}
		for name, test := range map[string]struct {
			spoil func(*memory)
			days  [2]int // the first and the last day in August on which it shows
		}{
			"missing": {func(m *memory) { m.remove(t, "c07mac1-000000000005", "c07mac1-000000000006") }, [2]int{4, 7}},
			"edited":  {func(m *memory) { m.find(t, "c07mac1-000000000005").Details.Message = "x" }, [2]int{4, 6}},
			"edited, and dated back": {func(m *memory) {
				m.find(t, "c07mac1-000000000005").Time = metav1.NewMicroTime(start.Add(-1000 * time.Hour))
			}, [2]int{4, 6}},
			"edited, and dated forward": {func(m *memory) {
				m.find(t, "c07mac1-000000000005").Time = metav1.NewMicroTime(start.Add(1000 * time.Hour))
			}, [2]int{4, 6}},
			"edited, two of them": {func(m *memory) {
				m.find(t, "c07mac1-000000000005").Details.Message = "x"
				m.find(t, "c07mac1-000000000006").Details.Message = "x"
			}, [2]int{4, 7}},
		} {
			m := daily()
			test.spoil(m)
			for day := 1; day < 19; day++ {
				status := m.report(t, fmt.Sprintf("2026-08-%02d..2026-08-%02d", day, day+1))
				shows := day >= test.days[0] && day <= test.days[1]
				assert.Equal(t, shows, status.Verdict == rack.ComplianceIncomplete, "%s: 8-%d: %v", name, day, status.Violations)
				assert.Equal(t, shows, status.BrokenChains == 1, "%s: 8-%d", name, day)
			}
		}
	})
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
