// Package evidence writes a compliance report with its evidence as a page of HTML for auditors: one
// file without scripts and network. Every text from records is escaped.
package evidence

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/timeline"
)

// Evidence is a report on the records of a file, with what proves it.
type Evidence struct {
	// File is the name of the export, and SHA256 its hash in hexadecimal.
	File, SHA256 string
	Window       ledger.Window
	MadeAt       time.Time
	Version      string
	Report       rack.ComplianceReportStatus
	Leases       []ledger.Lease
	Heads        *ledger.Heads
	// Expected are the heads of an earlier audit that the records continue; it may be nil.
	Expected *ledger.Heads
	History  *History
}

//go:embed evidence.html.tmpl
var page string

//go:embed evidence.css
var style string

var pageTemplate = template.Must(template.New("evidence").Funcs(template.FuncMap{"utc": utc, "micros": micros, "sequences": sequences}).Parse(page))

func utc(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func micros(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }

// sequences returns the numbers of records in their chain.
func sequences(records []string) string {
	var numbers []string
	for _, name := range records {
		if _, sequence, ok := ledger.SplitName(name); ok {
			numbers = append(numbers, strconv.FormatInt(sequence, 10))
		}
	}
	return strings.Join(numbers, ", ")
}

// Write writes the page.
func (e *Evidence) Write(w io.Writer) error {
	p := &pageData{Evidence: e, Style: template.CSS(timeline.Style + style), Verdict: verdicts[e.Report.Verdict]}
	var err error
	if p.Legend, err = timeline.Legend(); err != nil {
		return err
	}
	p.Rules = e.rules()
	p.Violations = e.violations()
	if p.Macs, err = e.macs(p.Violations); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(e.Heads.Chains)) {
		p.Chains = append(p.Chains, chainData{name, e.Heads.Chains[name]})
	}
	return pageTemplate.Execute(w, p)
}

// pageData is the data of the template.
type pageData struct {
	*Evidence
	Style      template.CSS
	Legend     template.HTML
	Verdict    verdict
	Rules      []ruleData
	Violations []violationData
	Macs       []macData
	Chains     []chainData
}

type verdict struct{ Class, Sign, Text string }

var verdicts = map[rack.ComplianceVerdict]verdict{
	rack.ComplianceCompliant:  {"compliant", "✓", "The ledger is complete, and it shows no violation of the three rules."},
	rack.ComplianceViolated:   {"violated", "✕", "The ledger shows a violation of a rule."},
	rack.ComplianceIncomplete: {"incomplete", "?", "The ledger has a gap or was edited. It proves neither compliance nor a violation."},
}

// A ruleData is the result of a rule.
type ruleData struct {
	Name, Limit, Found string
	Violations         int
	Kept               bool
}

func (e *Evidence) rules() []ruleData {
	r, counts := e.Report, map[rules.Rule]int{}
	for _, v := range r.Violations {
		counts[rules.Rule(v.Rule)]++
	}
	list := []ruleData{
		{Name: "Rule 1: two VMs per Mac", Limit: fmt.Sprintf("at most %d macOS VMs run on a Mac", rules.MaxVMsPerMac), Found: fmt.Sprintf("at most %d VMs ran at once on a Mac", r.MaxVMs), Violations: max(counts[rules.TwoVMsPerChassis], excess(r.MaxVMs))},
		{Name: "Rule 2: one tenant per Mac", Limit: "a Mac has one paying tenant at a time", Found: fmt.Sprintf("overlaps: %d", r.Overlaps), Violations: max(int(r.Overlaps), counts[rules.OneTenantPerChassis])},
		{Name: "Rule 3: at least 24 hours", Limit: fmt.Sprintf("a lease lasts at least %.0f hours", rules.MinimumLeaseDuration.Hours()), Found: fmt.Sprintf("early releases: %d", r.FloorBreaches), Violations: max(int(r.FloorBreaches), counts[rules.TwentyFourHours])},
		{Name: "Unbroken ledger", Limit: "each chain of records is complete and unchanged", Found: fmt.Sprintf("broken chains: %d of %d", r.BrokenChains, len(e.Heads.Chains)), Violations: max(int(r.BrokenChains), counts[rules.UnbrokenLedger])},
	}
	for i := range list {
		list[i].Kept = list[i].Violations == 0
	}
	return list
}

// excess returns 1 if more virtual machines ran than permitted: not every violation is listed.
func excess(maxVMs int64) int {
	if maxVMs > rules.MaxVMsPerMac {
		return 1
	}
	return 0
}

// A violationData is a violation with the content of its records.
type violationData struct {
	rack.ComplianceViolation
	Key, Rule string
	Evidence  []recordData
}

type recordData struct {
	Name   string
	Record *rack.AuditRecord // nil if it is not in the file
}

var ruleTitles = map[string]string{
	string(rules.TwoVMsPerChassis):    "Rule 1: two VMs per Mac",
	string(rules.OneTenantPerChassis): "Rule 2: one tenant per Mac",
	string(rules.TwentyFourHours):     "Rule 3: at least 24 hours",
	string(rules.UnbrokenLedger):      "Unbroken ledger",
}

func (e *Evidence) violations() (list []violationData) {
	for i, v := range e.Report.Violations {
		data := violationData{ComplianceViolation: v, Key: fmt.Sprintf("V%d", i+1), Rule: cmp.Or(ruleTitles[v.Rule], v.Rule)}
		for _, name := range v.Records {
			data.Evidence = append(data.Evidence, recordData{name, e.History.records[name]})
		}
		list = append(list, data)
	}
	return list
}

// A macData is the section of a Mac.
type macData struct {
	Serial, Node string
	Anchor       string
	Timeline     template.HTML
	Leases       []leaseData
	Violations   []violationData
	VMs, Omitted int
	Rejections   int64
}

type leaseData struct {
	ledger.Lease
	Key string
}

type chainData struct {
	Name string
	ledger.KnownChain
}

// macs returns the sections of all Macs with a lease or an event in the window.
func (e *Evidence) macs(violations []violationData) (list []macData, err error) {
	leases := map[string][]ledger.Lease{}
	for _, l := range e.Leases {
		if l.BoundAt.Before(e.Window.To) && (l.ReleasedAt.IsZero() || l.ReleasedAt.After(e.Window.From)) {
			leases[l.Chassis.SerialNumber] = append(leases[l.Chassis.SerialNumber], l)
		}
	}
	broken := map[string][]violationData{}
	for _, v := range violations {
		broken[v.SerialNumber] = append(broken[v.SerialNumber], v)
	}
	serials := slices.Concat(slices.Collect(maps.Keys(leases)), slices.Collect(maps.Keys(broken)), slices.Collect(maps.Keys(e.History.macs)))
	slices.Sort(serials)
	tones := tonesOf(e.Leases)
	for i, serial := range slices.Compact(serials) {
		if serial == "" {
			continue
		}
		m := macData{Serial: serial, Anchor: fmt.Sprintf("mac-%d", i), Violations: broken[serial]}
		if err := e.draw(&m, leases[serial], tones); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// tonesOf numbers the tenants, so that each has its colour on all Macs.
func tonesOf(leases []ledger.Lease) map[string]int {
	tones := map[string]int{}
	for _, l := range leases {
		tones[l.Reference.Namespace] = 0
	}
	for i, tenant := range slices.Sorted(maps.Keys(tones)) {
		tones[tenant] = i
	}
	return tones
}

// draw draws the timeline of a Mac.
func (e *Evidence) draw(m *macData, leases []ledger.Lease, tones map[string]int) (err error) {
	slices.SortFunc(leases, func(a, b ledger.Lease) int {
		return cmp.Or(a.BoundAt.Compare(b.BoundAt), strings.Compare(a.Reference.Name, b.Reference.Name))
	})
	t := timeline.Timeline{ID: m.Anchor, From: e.Window.From, To: e.Window.To}
	if e.Report.CoveredSince != nil && e.Report.CoveredSince.After(t.From) && e.Report.CoveredSince.Time.Before(t.To) {
		t.From = e.Report.CoveredSince.Time // nothing is known before
	}
	for i, l := range leases {
		data := leaseData{l, fmt.Sprintf("L%d", i+1)}
		m.Leases = append(m.Leases, data)
		t.Leases = append(t.Leases, timeline.Lease{
			Label: data.Key + " " + l.Reference.Namespace + "/" + l.Reference.Name, Key: data.Key, Tone: tones[l.Reference.Namespace],
			BoundAt: l.BoundAt, Floor: l.Floor, Held: l.DeletedAt, Release: l.ReleasedAt, BillableUntil: l.BillableUntil(),
		})
		m.Node = l.Chassis.NodeName
	}
	if mac := e.History.macs[m.Serial]; mac != nil {
		t.VMs, t.Events = mac.machines(), slices.Clone(mac.events)
		m.Node = cmp.Or(m.Node, mac.node)
		m.Omitted = mac.omitted
	}
	m.VMs = len(t.VMs)
	for _, event := range t.Events {
		if event.Kind == timeline.Rejection {
			m.Rejections += event.Count
		}
	}
	for _, v := range m.Violations {
		t.Events = append(t.Events, timeline.Event{Kind: timeline.Violation, At: within(v.Time.Time, t.From, t.To), Label: v.Key, Text: v.Rule + ": " + v.Message})
	}
	t.Title = fmt.Sprintf("Timeline of the Mac %s: leases: %d, virtual machines: %d, refused requests: %d, violations: %d",
		m.Serial, len(m.Leases), m.VMs, m.Rejections, len(m.Violations))
	m.Timeline, err = t.SVG()
	return err
}

// within returns a time in the window. A violation can have begun before, or have no known time.
func within(at, from, to time.Time) time.Time {
	switch {
	case at.Before(from):
		return from
	case !at.Before(to):
		return to.Add(-time.Second)
	}
	return at
}
