package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/rules"
)

var noon = time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)

func lease(tenant, name, class, sku string, bound time.Time, deleted, released time.Duration) ledger.Lease {
	l := ledger.Lease{
		Reference: rack.AuditReference{Namespace: tenant, Name: name}, Chassis: rack.AuditChassis{SerialNumber: "C07" + name}, ClassName: class, SKU: sku,
		LeaseTimes: rules.LeaseTimes{BoundAt: bound, Floor: bound.Add(24 * time.Hour)},
	}
	if deleted > 0 {
		l.DeletedAt = bound.Add(deleted)
	}
	if released > 0 {
		l.ReleasedAt = bound.Add(released)
	}
	return l
}

func hours(n float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(n * float64(time.Hour))}
}

func TestReport(t *testing.T) {
	const day = 24 * time.Hour
	running := lease("acme", "a", "base", "SKU-1", noon.Add(2*day), 0, 0)
	unproven := lease("acme", "b", "", "", noon, time.Hour, day)
	unproven.Unproven = "gone"
	since := metav1.NewTime(noon.Add(-time.Hour))
	book := NewBook([]ledger.Lease{
		running,
		lease("acme", "c", "base", "SKU-1", noon.Add(day), time.Hour, day+time.Hour),
		lease("acme", "d", "base", "SKU-2", noon, 30*time.Hour, 31*time.Hour),
		unproven,
		lease("globex", "e", "base", "SKU-1", noon, day, day),
		lease("acme", "before", "base", "SKU-1", noon.Add(-20*day), day, day),
	}, noon.Add(3*day+500*time.Millisecond), &since)
	assert.Equal(t, []string{"acme", "globex"}, book.Tenants())

	window, err := book.Window("7d")
	require.NoError(t, err)
	report := book.Report("acme", window, nil)
	assert.Equal(t, metav1.ObjectMeta{Namespace: "acme", Name: "7d", CreationTimestamp: metav1.NewTime(noon.Add(3 * day))}, report.ObjectMeta)
	status := report.Status
	assert.Equal(t, rack.Usage{Leases: 4, BillableDays: 5, ChassisTime: hours(24 + 25 + 31 + 24), HeldTime: hours(46)}, status.Total)
	assert.Equal(t, rack.Usage{Leases: 1, BillableDays: 1, ChassisTime: hours(24)}, status.Running)
	assert.EqualValues(t, 1, status.Unproven)
	assert.Equal(t, &since, status.CoveredSince)
	assert.Equal(t, []rack.ClassUsage{
		{Total: rack.Usage{Leases: 1, BillableDays: 1, ChassisTime: hours(24), HeldTime: hours(23)}},
		{ClassName: "base", SKU: "SKU-1", Total: rack.Usage{Leases: 2, BillableDays: 2, ChassisTime: hours(49), HeldTime: hours(23)}, Running: status.Running},
		{ClassName: "base", SKU: "SKU-2", Total: rack.Usage{Leases: 1, BillableDays: 2, ChassisTime: hours(31)}},
	}, status.Classes)
	var names []string
	for _, l := range status.Leases {
		names = append(names, l.Name)
	}
	assert.Equal(t, []string{"b", "d", "c", "a"}, names, "by the time of the binding")
	assert.Equal(t, "gone", status.Leases[0].Unproven)
	assert.Equal(t, noon.Add(day), status.Leases[0].BillableUntil.Time)
	assert.Nil(t, status.Leases[3].BillableUntil)

	none := book.Report("acme", window, func(l ledger.Lease) bool { return l.Reference.Name != "a" })
	assert.EqualValues(t, 3, none.Status.Total.Leases)
	assert.Zero(t, book.Report("initech", window, nil).Status.Total)
}

// The leases of a report are limited; its totals are not.
func TestReportOfManyLeases(t *testing.T) {
	var leases []ledger.Lease
	for range MaxLeases + 1 {
		leases = append(leases, lease("acme", "a", "base", "", noon, 0, 0))
	}
	book := NewBook(leases, noon.Add(time.Hour), nil)
	window, err := book.Window("today")
	require.NoError(t, err)
	status := book.Report("acme", window, nil).Status
	assert.Len(t, status.Leases, MaxLeases)
	assert.EqualValues(t, MaxLeases+1, status.Total.Leases)
	assert.EqualValues(t, MaxLeases+1, status.Classes[0].Total.BillableDays)
}

// A book of an earlier time does not have later events, so a bill can be repeated.
func TestBookOfAnEarlierTime(t *testing.T) {
	l := lease("acme", "a", "base", "", noon, 25*time.Hour, 26*time.Hour)
	at := func(asOf time.Duration) rack.Usage {
		book := NewBook([]ledger.Lease{l}, noon.Add(asOf), nil)
		window, err := book.Window("7d")
		require.NoError(t, err)
		return book.Report("acme", window, nil).Status.Running
	}
	assert.Equal(t, rack.Usage{Leases: 1, BillableDays: 1, ChassisTime: hours(24)}, at(24*time.Hour))
	assert.Equal(t, rack.Usage{Leases: 1, BillableDays: 2, ChassisTime: hours(25.5)}, at(25*time.Hour+30*time.Minute))
	assert.Zero(t, at(26*time.Hour))
}

// Consecutive windows add up to the window of all of them, except for the number of leases.
func TestWindowsAddUp(t *testing.T) {
	book := NewBook([]ledger.Lease{
		lease("acme", "a", "base", "", time.Date(2026, 10, 31, 18, 0, 0, 0, time.UTC), 40*time.Hour, 60*time.Hour),
		lease("acme", "b", "base", "", time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC), time.Hour, 25*time.Hour),
		lease("acme", "c", "base", "", time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), 0, 0),
	}, time.Date(2026, 12, 3, 7, 0, 0, 0, time.UTC), nil)
	total := func(names ...string) (sum rack.Usage) {
		for _, name := range names {
			window, err := book.Window(name)
			require.NoError(t, err)
			one := book.Report("acme", window, nil).Status.Total
			sum.BillableDays += one.BillableDays
			sum.ChassisTime.Duration += one.ChassisTime.Duration
			sum.HeldTime.Duration += one.HeldTime.Duration
		}
		return sum
	}
	assert.Equal(t, total("2026-10-01..2027-01-01"), total("2026-10", "2026-11", "2026-12"))
	assert.Equal(t, total("2026-11"), total("2026-11-01..2026-11-02", "2026-11-02..2026-11-30", "2026-11-30..2026-12-01"))
	assert.Equal(t, total("month"), total("2026-12"))
	assert.EqualValues(t, 2+1+33, total("2026-10-01..2027-01-01").BillableDays)
}
