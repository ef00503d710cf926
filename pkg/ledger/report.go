package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// maxViolations is the maximum number of violations that a report describes; it counts all.
const maxViolations = 100

// ErrNotInOrder is the error of a report on records that are not sorted by name.
var ErrNotInOrder = fmt.Errorf("ledger: the records of a chain are not in the order of their names")

// Report answers, for each of up to 64 windows, whether the three rules held, from the records
// alone and in one pass. It takes memory in proportion to the number of chains, not of records.
func Report(ctx context.Context, source RecordSource, anchors Anchors, windows ...Window) ([]rack.ComplianceReportStatus, error) {
	r, err := newReport(anchors, windows)
	if err != nil {
		return nil, err
	}
	return r.read(ctx, source)
}

// Findings are the results of reading records: the reports on windows, and the histories of all
// leases.
type Findings struct {
	Reports []rack.ComplianceReportStatus
	// Lost are the numbers of chains of each report that only a recorded loss of history breaks.
	Lost   []int64
	Leases []Lease
}

// Find is like Report, and also returns the leases. It takes memory in proportion to their number.
func Find(ctx context.Context, source RecordSource, anchors Anchors, windows ...Window) (*Findings, error) {
	r, err := newReport(anchors, windows)
	if err != nil {
		return nil, err
	}
	return r.find(ctx, source)
}

// A report is a report under construction.
type report struct {
	anchors Anchors
	windows []*windowReport
	chains  map[string]*chain
	last    *chain // the chain of the last record, which usually is that of the next
	broken  bool   // whether a chain is broken
	proof   *Proof // for the next report; nil if it cannot rely on this one

	keepsLeases bool
	leases      []Lease
}

// A windowReport is the part of a report for one window.
type windowReport struct {
	Window
	span         span
	status       rack.ComplianceReportStatus
	lost         int64 // the number of chains that only a recorded loss breaks
	began, since int64 // the start of the ledger, and the time since which all chains are complete
}

func newReport(anchors Anchors, windows []Window) (*report, error) {
	if len(windows) > 64 {
		return nil, fmt.Errorf("ledger: %d windows are too many for a report", len(windows))
	}
	r := &report{anchors: anchors, chains: map[string]*chain{}}
	for _, w := range windows {
		r.windows = append(r.windows, &windowReport{
			Window: w,
			span:   w.span(),
			status: rack.ComplianceReportStatus{From: metav1.NewTime(w.From), To: metav1.NewTime(w.To)},
			began:  forever,
			since:  always,
		})
	}
	return r, nil
}

// read adds the records of a source, and returns the finished report.
func (r *report) read(ctx context.Context, source RecordSource) ([]rack.ComplianceReportStatus, error) {
	if err := hashed(ctx, source, r.add); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// find is like read, and also returns the leases.
func (r *report) find(ctx context.Context, source RecordSource) (*Findings, error) {
	r.keepsLeases = true
	reports, err := r.read(ctx, source)
	findings := &Findings{Reports: reports, Leases: r.leases}
	for _, w := range r.windows {
		findings.Lost = append(findings.Lost, w.lost)
	}
	return findings, err
}

func (r *report) add(record *rack.AuditRecord, intact bool) error {
	name, sequence, ok := SplitName(record.Name)
	if !ok {
		return fmt.Errorf("ledger: %q is not the name of a record", record.Name)
	}
	c := r.last
	if c == nil || c.name != name {
		if c = r.chains[name]; c == nil {
			c = newChain(r, name)
			r.chains[name] = c
		}
		r.last = c
	}
	if err := c.add(record, sequence, intact); err != nil {
		return err
	}
	if r.proof != nil {
		r.proof.records++
	}
	return nil
}

// breaks is called for each break of a chain.
func (r *report) breaks() {
	r.broken = true
	r.forget()
}

func (r *report) finish() []rack.ComplianceReportStatus {
	for name := range r.anchors {
		if r.chains[name] == nil && r.anchors[name].Head != nil {
			r.chains[name] = newChain(r, name)
		}
	}
	proof := r.proof
	r.proof = nil // Later records can contradict the facts of an end.
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		c := r.chains[name]
		if proof != nil && c.sequence > 0 {
			proof.chains[name] = c.clone()
		}
		c.finish()
		r.countLost(c)
		r.leases = append(r.leases, c.leases...)
	}
	if !r.broken {
		r.proof = proof
	}
	statuses := make([]rack.ComplianceReportStatus, 0, len(r.windows))
	for _, w := range r.windows {
		statuses = append(statuses, w.finish())
	}
	return statuses
}

// countLost counts a chain as broken in the windows of its losses, unless it has another break in
// them.
func (r *report) countLost(c *chain) {
	for i, w := range r.windows {
		if c.lost.has(i) && c.broken.add(i) {
			w.status.BrokenChains++
			w.lost++
		}
	}
}

// during calls f with each window that s meets, and the window's number.
func (r *report) during(s span, f func(i int, status *rack.ComplianceReportStatus)) {
	for i, w := range r.windows {
		if w.span.meets(s) {
			f(i, &w.status)
		}
	}
}

// violated adds a violation that lasted for s.
func (r *report) violated(s span, v rack.ComplianceViolation) {
	r.during(s, func(_ int, status *rack.ComplianceReportStatus) { addViolation(status, v) })
}

func addViolation(status *rack.ComplianceReportStatus, v rack.ComplianceViolation) {
	switch rules.Rule(v.Rule) {
	case rules.OneTenantPerChassis:
		status.Overlaps++
	case rules.TwentyFourHours:
		status.FloorBreaches++
	}
	at, _ := slices.BinarySearchFunc(status.Violations, v, compareViolations)
	status.Violations = slices.Insert(status.Violations, at, v)
	status.Violations = status.Violations[:min(len(status.Violations), maxViolations)]
	switch {
	case v.Rule != string(rules.UnbrokenLedger):
		status.Verdict = rack.ComplianceViolated
	case status.Verdict != rack.ComplianceViolated:
		status.Verdict = rack.ComplianceIncomplete
	}
}

func compareViolations(a, b rack.ComplianceViolation) int {
	if c := a.Time.Compare(b.Time.Time); c != 0 {
		return c
	}
	if c := strings.Compare(a.SerialNumber, b.SerialNumber); c != 0 {
		return c
	}
	if c := strings.Compare(a.Rule, b.Rule); c != 0 {
		return c
	}
	return strings.Compare(a.Message, b.Message)
}

func (w *windowReport) finish() rack.ComplianceReportStatus {
	if w.status.Verdict == "" {
		w.status.Verdict = rack.ComplianceCompliant
	}
	since := w.To.UnixMicro() // Without records, nothing is covered.
	if w.began != forever {
		since = max(w.began, w.since)
	}
	if since > w.span.from {
		t := metav1.NewTime(time.UnixMicro(since).UTC().Truncate(time.Second))
		w.status.CoveredSince = &t
	}
	return w.status
}

// windowSet is a set of windows, by number.
type windowSet uint64

func (s windowSet) has(i int) bool { return s&(1<<i) != 0 }

// add adds a window and reports whether it is new.
func (s *windowSet) add(i int) bool {
	bit := windowSet(1) << i
	fresh := *s&bit == 0
	*s |= bit
	return fresh
}
