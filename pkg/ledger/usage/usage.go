// Package usage computes UsageReports from the histories of leases. The formula is in pkg/rules.
package usage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/rules"
)

// UsualWindows are the names of the windows in a list of reports.
var UsualWindows = []string{"today", "7d", "30d", "month"}

// MaxLeases is the maximum number of leases that a report lists; the totals include all.
const MaxLeases = 5000

// A Book has the leases in the ledger at a time.
type Book struct {
	asOf    time.Time
	since   *metav1.Time
	tenants map[string][]ledger.Lease
}

// NewBook returns the book of leases whose records were read at a time. All records since another
// time, which may be nil, were there.
func NewBook(leases []ledger.Lease, asOf time.Time, since *metav1.Time) *Book {
	// All times in records are whole seconds, so all times in reports are exact.
	b := &Book{asOf: asOf.UTC().Truncate(time.Second), since: since, tenants: map[string][]ledger.Lease{}}
	for _, l := range leases {
		b.tenants[l.Reference.Namespace] = append(b.tenants[l.Reference.Namespace], b.asKnown(l))
	}
	for _, leases := range b.tenants {
		slices.SortFunc(leases, func(a, b ledger.Lease) int {
			return cmp.Or(a.BoundAt.Compare(b.BoundAt), strings.Compare(a.Chassis.SerialNumber, b.Chassis.SerialNumber),
				strings.Compare(a.Reference.Name, b.Reference.Name), strings.Compare(string(a.Reference.UID), string(b.Reference.UID)))
		})
	}
	return b
}

// asKnown returns a lease without the events after the time of the book.
func (b *Book) asKnown(l ledger.Lease) ledger.Lease {
	for _, at := range []*time.Time{&l.DeletedAt, &l.ReleasedAt} {
		if at.After(b.asOf) {
			*at = time.Time{}
		}
	}
	return l
}

// AsOf returns the time of the book, in whole seconds.
func (b *Book) AsOf() time.Time { return b.asOf }

// Tenants returns the names of the namespaces with leases, sorted.
func (b *Book) Tenants() []string { return slices.Sorted(maps.Keys(b.tenants)) }

// Window returns the window with a name at the time of the book.
func (b *Book) Window(name string) (ledger.Window, error) { return ledger.ParseWindow(name, b.asOf) }

// Report returns the report on the leases of a tenant in a window, limited to those for which
// visible returns true; nil means all.
func (b *Book) Report(tenant string, window ledger.Window, visible func(ledger.Lease) bool) rack.UsageReport {
	status := rack.UsageReportStatus{
		From: metav1.NewTime(window.From), To: metav1.NewTime(window.To), AsOf: metav1.NewTime(b.asOf),
	}
	if b.since != nil && b.since.After(window.From) {
		status.CoveredSince = b.since.DeepCopy()
	}
	classes := map[[2]string]*rack.ClassUsage{}
	for _, l := range b.tenants[tenant] {
		use := l.Use(window.From, window.To)
		if use == (rules.LeaseUse{}) || visible != nil && !visible(l) {
			continue
		}
		key := [2]string{l.ClassName, l.SKU}
		class := classes[key]
		if class == nil {
			class = &rack.ClassUsage{ClassName: l.ClassName, SKU: l.SKU}
			classes[key] = class
		}
		for _, sum := range []*rack.Usage{&status.Total, &class.Total} {
			add(sum, use)
		}
		if l.ReleasedAt.IsZero() {
			add(&status.Running, use)
			add(&class.Running, use)
		}
		if l.Unproven != "" {
			status.Unproven++
		}
		if len(status.Leases) < MaxLeases {
			status.Leases = append(status.Leases, ofLease(l, use))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(classes), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		status.Classes = append(status.Classes, *classes[key])
	}
	return rack.UsageReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: window.Name, CreationTimestamp: metav1.NewTime(b.asOf)},
		Status:     status,
	}
}

func add(sum *rack.Usage, use rules.LeaseUse) {
	sum.Leases++
	sum.BillableDays += use.Days
	sum.ChassisTime.Duration += use.Chassis
	sum.HeldTime.Duration += use.Held
}

func ofLease(l ledger.Lease, use rules.LeaseUse) rack.LeaseUsage {
	return rack.LeaseUsage{
		Name: l.Reference.Name, UID: l.Reference.UID, ClassName: l.ClassName, SKU: l.SKU, SerialNumber: l.Chassis.SerialNumber,
		BoundAt: metav1.NewTime(l.BoundAt), EarliestReleaseAt: metav1.NewTime(l.Floor.UTC()),
		DeletedAt: optional(l.DeletedAt), BillableUntil: optional(l.BillableUntil()), ReleasedAt: optional(l.ReleasedAt),
		BillableDays: use.Days, ChassisTime: metav1.Duration{Duration: use.Chassis}, HeldTime: metav1.Duration{Duration: use.Held},
		Records: l.Records(), Unproven: l.Unproven,
	}
}

func optional(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	stored := metav1.NewTime(t.UTC())
	return &stored
}
