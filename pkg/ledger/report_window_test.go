package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// after returns the time d after the start.
func after(d time.Duration) time.Time { return start.Add(d) }

// longHistory returns a history of ten days on three Macs.
func longHistory(t *testing.T) *memory {
	m := newMemory()
	one, two, three := newNode("mac1"), newNode("mac2"), newNode("mac3")
	kept, gone, late := newLease("acme", "kept"), newLease("acme", "gone"), newLease("globex", "late")
	m.bind(t, kept, one)
	vm := newInstance(kept, "vm")
	m.append(t, NewInstanceStarted(vm, kept, 1))
	m.bind(t, gone, two)
	m.append(t, NewNodeQuarantined(three))
	m.clock.SetTime(after(30 * time.Hour))
	m.release(t, gone)
	m.clock.SetTime(after(10 * 24 * time.Hour))
	m.bind(t, late, two)
	m.clock.SetTime(after(10*24*time.Hour + time.Hour))
	return m
}

func TestReportCountsLeasesFromBeforeTheWindow(t *testing.T) {
	status := longHistory(t).report(t, "24h")
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict)
	assert.Equal(t, int64(1), status.Records)
	assert.Equal(t, int64(2), status.Chassis, "the Mac that is leased counts, though nothing was recorded of it")
	assert.Equal(t, int64(2), status.Leases)
	assert.Equal(t, int64(0), status.VMStarts)
	assert.Equal(t, int64(1), status.MaxVMs)
	assert.Nil(t, status.CoveredSince)
}

func TestReportIgnoresRecordsAfterTheWindow(t *testing.T) {
	m := longHistory(t)
	m.bind(t, newLease("globex", "intruder"), newNode("mac1"))
	status := m.report(t, "2026-08-01..2026-08-03")
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict)
	assert.Equal(t, int64(5), status.Records)
	assert.Equal(t, int64(3), status.Chassis)
	assert.Equal(t, int64(2), status.Leases)
	assert.Equal(t, metav1.NewTime(start), *status.CoveredSince, "the ledger began at noon")
	assert.Equal(t, metav1.Date(2026, 8, 3, 0, 0, 0, 0, time.UTC), status.To)
}

func TestReportIgnoresLeasesThatEndedBeforeTheWindow(t *testing.T) {
	status := longHistory(t).report(t, "2026-08-05..2026-08-06")
	assert.Equal(t, int64(0), status.Records)
	assert.Equal(t, int64(1), status.Chassis)
	assert.Equal(t, int64(1), status.Leases)
}

func TestReportShowsViolationsInTheirWindow(t *testing.T) {
	m := newMemory()
	node := newNode("mac1")
	first, second, third := newLease("acme", "first"), newLease("globex", "second"), newLease("acme", "third")
	m.bind(t, first, node)
	m.clock.SetTime(after(2 * 24 * time.Hour))
	m.bind(t, second, node) // on 3 August two tenants have the Mac,
	m.clock.SetTime(after(5 * 24 * time.Hour))
	m.release(t, first) // until the 6th
	m.release(t, second)
	m.clock.SetTime(after(8 * 24 * time.Hour))
	m.bind(t, third, node)
	var vms []string
	for i := range 3 { // three run from the 9th
		vm := newInstance(third, fmt.Sprint("vm", i))
		vms = append(vms, vm.Name)
		m.append(t, NewInstanceStarted(vm, third, int32(i+1)))
	}
	m.clock.SetTime(after(10 * 24 * time.Hour))
	m.append(t, NewInstanceStopped(newInstance(third, vms[0]), third, 2)) // to the 11th
	m.clock.SetTime(after(40 * 24 * time.Hour))
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
}

func TestAViolationEndsWithItsLastOpponentOrItsSubject(t *testing.T) {
	for name, test := range map[string]struct {
		released []string // one a day, from the 4th of August
		until    int      // the last day on which it shows
	}{
		"none":                {nil, 9},
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
			m.clock.SetTime(after(time.Duration(3+i) * 24 * time.Hour))
			m.release(t, leases[tenant])
		}
		m.clock.SetTime(after(12 * 24 * time.Hour))
		for day := 3; day < 9; day++ {
			status := m.report(t, fmt.Sprintf("2026-08-%02d..2026-08-%02d", day, day+1))
			assert.Equal(t, day <= test.until, status.Verdict == rack.ComplianceViolated, "%s: 8-%d: %v", name, day, status.Violations)
		}
	}
}

func TestReportCountsALeaseWithoutItsBinding(t *testing.T) {
	m := newMemory()
	lease := newLease("acme", "build")
	m.bind(t, lease, newNode("mac1"))
	m.clock.SetTime(after(5 * 24 * time.Hour))
	m.release(t, lease)
	m.remove(t, "c07mac1-000000000001")
	m.step(24 * time.Hour)
	assert.Equal(t, int64(1), reportOn(t, m.source(), nil, "2026-08-03..2026-08-04", m.clock.Now()).Leases)
	assert.Equal(t, int64(0), reportOn(t, m.source(), nil, "2026-08-07..2026-08-08", m.clock.Now()).Leases)
}

func TestReportShowsBrokenChainsInTheirWindow(t *testing.T) {
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
}
