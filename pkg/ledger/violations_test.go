package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// planted is a false history, and the one violation that a report must find in it.
type planted struct {
	spoil   func(*testing.T, *memory)
	records []string // without namespaces
	message string
	serial  string
}

// mac returns the names of records of a Mac.
func mac(name string, sequence ...int64) (names []string) {
	for _, s := range sequence {
		names = append(names, Name("c07"+name, s))
	}
	return names
}

func (p planted) run(t *testing.T, verdict rack.ComplianceVerdict, rule rules.Rule) {
	m := history(t)
	p.spoil(t, m)
	status := m.report(t, "7d")
	require.Len(t, status.Violations, 1, "%v", status.Violations)
	violation := status.Violations[0]
	assert.Equal(t, string(rule), violation.Rule)
	assert.Equal(t, p.serial, violation.SerialNumber)
	assert.Contains(t, violation.Message, p.message)
	assert.False(t, violation.Time.Time.Before(start) || violation.Time.After(m.clock.Now()), violation.Time)
	assert.Equal(t, p.records, withoutNamespaces(t, m, violation.Records))
	assert.Equal(t, verdict, status.Verdict)
	assert.Equal(t, rule == rules.OneTenantPerChassis, status.Overlaps == 1)
	assert.Equal(t, rule == rules.TwentyFourHours, status.FloorBreaches == 1)
	assert.Equal(t, rule == rules.UnbrokenLedger, status.BrokenChains == 1)
	assert.Equal(t, rule == rules.TwoVMsPerChassis, status.MaxVMs > 2)
}

func TestReportFindsTwoTenants(t *testing.T) {
	for name, tt := range map[string]planted{
		"two tenants at once": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "intruder")
				m.step(time.Minute)
				m.bind(t, lease, newNode("mac2"))
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			mac("mac2", 1, 5), "lease globex/intruder (globex-intruder) of globex while lease acme/other (acme-other) of acme had it", "C07MAC2",
		},
		"two leases of one tenant at once": {
			func(t *testing.T, m *memory) { m.bind(t, newLease("acme", "twin"), newNode("mac2")) },
			mac("mac2", 1, 5), "had it", "C07MAC2",
		},
		"two leases of one name at once": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "other")
				lease.UID = "recreated"
				m.bind(t, lease, newNode("mac2"))
			},
			mac("mac2", 1, 5), "(recreated) of acme while lease acme/other (acme-other) of acme had it", "C07MAC2",
		},
		"an instance of another tenant": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "theirs")
				lease.Status.SerialNumber = "C07MAC2"
				m.append(t, NewInstanceStarted(newInstance(lease, "vm-z"), lease, 2))
			},
			mac("mac2", 1, 5), "which acme had leased", "C07MAC2",
		},
		"an instance on an unleased Mac": {
			func(t *testing.T, m *memory) {
				lease := newLease("globex", "second")
				lease.Status.SerialNumber = "C07MAC1"
				m.append(t, NewInstanceStarted(newInstance(lease, "late"), lease, 1))
			},
			mac("mac1", 12), "ran on the Mac, which had no lease", "C07MAC1",
		},
		"an instance that outlives its lease into the next": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "other")
				lease.Status.SerialNumber = "C07MAC2"
				m.release(t, lease)
				m.bind(t, newLease("globex", "next"), newNode("mac2"))
			},
			mac("mac2", 4, 6), "instance acme/vm-d (acme-vm-d) of acme still ran", "C07MAC2",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceViolated, rules.OneTenantPerChassis) })
	}
}

func TestReportFindsThreeVirtualMachines(t *testing.T) {
	for name, tt := range map[string]planted{
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
			mac("mac2", 4, 5, 6), "ran 3 virtual machines at once; the limit is 2", "C07MAC2",
		},
		"three virtual machines, as the server says": {
			func(t *testing.T, m *memory) {
				m.rewrite(t, "c07mac1-000000000009", func(r *rack.AuditRecord) { *r.Details.LocalVMs = 3 })
			},
			mac("mac1", 9), "ran 3 virtual machines at once", "C07MAC1",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceViolated, rules.TwoVMsPerChassis) })
	}
}

func TestReportFindsEarlyReleases(t *testing.T) {
	for name, tt := range map[string]planted{
		"a release before the floor": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				m.step(24*time.Hour - time.Second)
				m.release(t, lease)
			},
			mac("mac1", 12, 13), "1s before its floor", "C07MAC1",
		},
		"a release before a longer floor": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				lease.Status.EarliestReleaseAt = &metav1.Time{Time: m.clock.Now().Add(48 * time.Hour)}
				m.step(25 * time.Hour)
				m.release(t, lease)
			},
			mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
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
			mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
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
			mac("mac1", 12, 14), "23h0m0s before its floor", "C07MAC1",
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
			mac("mac1", 12, 15), "23h0m0s before its floor", "C07MAC1",
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
			mac("mac1", 12, 13), "22h0m0s before its floor", "C07MAC1",
		},
		"a release before the floor that says it was later": {
			func(t *testing.T, m *memory) {
				lease := newLease("acme", "third")
				m.bind(t, lease, newNode("mac1"))
				m.step(time.Hour)
				m.append(t, NewLeaseReleased(lease, m.clock.Now().Add(24*time.Hour), nil))
			},
			mac("mac1", 12, 13), "23h0m0s before its floor", "C07MAC1",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceViolated, rules.TwentyFourHours) })
	}
}

func TestReportFindsMissingRecords(t *testing.T) {
	for name, tt := range map[string]planted{
		"a missing record": {
			func(t *testing.T, m *memory) { m.remove(t, "c07mac1-000000000007") },
			mac("mac1", 6, 8), "record 7 is missing", "C07MAC1",
		},
		"several missing records": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 2, 3, 4, 5)...) },
			mac("mac1", 1, 6), "records 2 to 5 are missing", "C07MAC1",
		},
		"the first records missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 1, 2)...) },
			mac("mac1", 3), "records 1 to 2 are missing before", "C07MAC1",
		},
		"the last records missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac1", 10, 11)...) },
			mac("mac1", 9), "records 10 to 11 are missing at the end", "C07MAC1",
		},
		"a whole chain missing": {
			func(t *testing.T, m *memory) { m.remove(t, mac("mac2", 1, 2, 3, 4)...) },
			nil, "records 1 to 4 are missing at the end of chain c07mac2", "",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceIncomplete, rules.UnbrokenLedger) })
	}
}

func TestReportFindsEditedRecords(t *testing.T) {
	for name, tt := range map[string]planted{
		"an edited record": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Tenant = "acme" },
			mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited record that is moved with its tenant": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000008").Tenant = "acme"
				m.find(t, "c07mac1-000000000008").Namespace = "acme"
			},
			mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited record that is dated back": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000008").Time = metav1.NewMicroTime(start.Add(-time.Hour))
			},
			mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited first record": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000001").Chassis.SerialNumber = "ANOTHER" },
			mac("mac1", 1), "was edited", "C07MAC1",
		},
		"an edited last record": {
			func(t *testing.T, m *memory) {
				m.find(t, "c07mac1-000000000011").Details.ReleasedAt = nil
			},
			mac("mac1", 11), "was edited", "C07MAC1",
		},
		"an edited hash": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Hash = "0000" },
			mac("mac1", 8), "was edited", "C07MAC1",
		},
		"an edited sequence": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000008").Sequence = 9 },
			mac("mac1", 8), "was edited", "C07MAC1",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceIncomplete, rules.UnbrokenLedger) })
	}
}

func TestReportFindsReplacedRecords(t *testing.T) {
	for name, tt := range map[string]planted{
		"a replaced record": { // with a hash that fits its content
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac1-000000000001")
				record.Tenant, record.Namespace = "globex", "globex"
				record.Hash = Hash(record)
			},
			mac("mac1", 1, 2), "does not match the hash of", "C07MAC1",
		},
		"a replaced last record": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac1-000000000011")
				record.Details.ReleasedAt = &metav1.Time{Time: start}
				record.Hash = Hash(record)
			},
			mac("mac1", 11), "was replaced: the head", "C07MAC1",
		},
		"a record in another's place": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac2-000000000004").DeepCopy()
				m.remove(t, "c07mac1-000000000010")
				record.Name = "c07mac1-000000000010"
				m.records = append(m.records, record)
			},
			mac("mac1", 10), "is misplaced: its fields identify it as c07mac2-000000000004", "C07MAC1",
		},
		"a record in another namespace": {
			func(t *testing.T, m *memory) { m.find(t, "c07mac1-000000000010").Namespace = "acme" },
			mac("mac1", 10), "belongs in namespace globex", "C07MAC1",
		},
		"a first record that had one before it": {
			func(t *testing.T, m *memory) {
				record := m.find(t, "c07mac2-000000000001")
				record.PreviousHash = "00"
				record.Hash = Hash(record)
			},
			mac("mac2", 1), "is the first of its chain", "C07MAC2",
		},
		"a forked chain": {
			func(t *testing.T, m *memory) {
				twin := m.find(t, "c07mac1-000000000008").DeepCopy()
				twin.Tenant, twin.Namespace = "initech", "initech"
				twin.Hash = Hash(twin)
				m.records = append(m.records, twin)
			},
			mac("mac1", 8, 8), "forked", "C07MAC1",
		},
		"a forked chain, the false record first": {
			func(t *testing.T, m *memory) {
				twin := m.find(t, "c07mac1-000000000008").DeepCopy()
				twin.Tenant, twin.Namespace = "aaa", "aaa"
				twin.Hash = Hash(twin)
				m.records = append([]*rack.AuditRecord{twin}, m.records...)
			},
			mac("mac1", 8, 8), "forked", "C07MAC1",
		},
		"a record out of time order": {
			func(t *testing.T, m *memory) {
				m.rewrite(t, "c07mac1-000000000009", func(r *rack.AuditRecord) {
					r.Time = metav1.NewMicroTime(r.Time.Add(-2 * time.Hour))
				})
			},
			mac("mac1", 8, 9), "earlier than the previous record", "C07MAC1",
		},
	} {
		t.Run(name, func(t *testing.T) { tt.run(t, rack.ComplianceIncomplete, rules.UnbrokenLedger) })
	}
}
