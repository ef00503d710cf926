package compliance

import (
	"fmt"
	"strings"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
	"macrack.io/macrack/pkg/rules"
)

// drawList returns a table of reports, followed by their violations.
func drawList(reports []rackv1alpha1.ComplianceReport, style terminal.Style) []string {
	var rows [][]terminal.Cell
	for i := range reports {
		s := &reports[i].Status
		rows = append(rows, []terminal.Cell{
			terminal.Text(terminal.Clean(reports[i].Name)), verdict(s.Verdict), terminal.Number(s.Chassis), terminal.Number(s.Leases), terminal.Number(s.VMStarts),
			terminal.Number(s.MaxVMs), terminal.Fault(s.Overlaps), terminal.Fault(s.FloorBreaches), terminal.Fault(s.BrokenChains), terminal.Number(s.Rejected),
		})
	}
	header := []string{"WINDOW", "VERDICT", "MACS", "LEASES", "STARTS", "MAX", "OVERLAPS", "EARLY", "BROKEN", "REFUSED"}
	lines := terminal.Table(style, header, rows)
	for i := range reports {
		if len(reports[i].Status.Violations) > 0 {
			lines = append(lines, "", terminal.Cut("Violations in "+terminal.Clean(reports[i].Name)+":", style.Width))
			lines = append(lines, drawViolations(reports[i].Status.Violations, style)...)
		}
	}
	return lines
}

// drawReport returns a report in full.
func drawReport(report *rackv1alpha1.ComplianceReport, style terminal.Style) []string {
	s := &report.Status
	v := verdict(s.Verdict)
	meaning := map[rackv1alpha1.ComplianceVerdict]string{
		rackv1alpha1.ComplianceCompliant:  "the ledger is complete and shows no violation",
		rackv1alpha1.ComplianceViolated:   "the ledger shows a violation of a rule",
		rackv1alpha1.ComplianceIncomplete: "the ledger has a gap or was edited, so it proves nothing",
	}[s.Verdict]
	lines := []string{
		style.Paint(v.Colour, v.Text) + terminal.Cut(": "+meaning, style.Width-terminal.Width(v.Text)),
		terminal.Cut(fmt.Sprintf("From %s to %s", day(s.From.Time), day(s.To.Time)), style.Width),
	}
	if s.CoveredSince != nil {
		lines = append(lines, terminal.Cut("The ledger began at "+cmdutil.Time(s.CoveredSince.Time)+", within this window.", style.Width))
	}
	rows := [][]terminal.Cell{
		{terminal.Text(rules.TwoVMsPerChassis.String()), terminal.Text(fmt.Sprintf("at most %d at a time, in %d starts", s.MaxVMs, s.VMStarts))},
		{terminal.Text(rules.OneTenantPerChassis.String()), terminal.Text(fmt.Sprintf("%d overlaps, in %d leases of %d Macs", s.Overlaps, s.Leases, s.Chassis))},
		{terminal.Text(rules.TwentyFourHours.String()), terminal.Text(fmt.Sprintf("%d releases before the floor", s.FloorBreaches))},
		{terminal.Text(rules.UnbrokenLedger.String()), terminal.Text(fmt.Sprintf("%d broken chains, in %d records", s.BrokenChains, s.Records))},
		{terminal.Text("refused requests"), terminal.Text(fmt.Sprintf("%d for a rule, %d for other reasons", s.Rejected, s.OtherRejections))},
	}
	lines = append(append(lines, ""), terminal.Table(style, []string{"RULE", "RESULT"}, rows)...)
	if len(s.Violations) > 0 {
		lines = append(lines, "", fmt.Sprintf("Violations (%d):", len(s.Violations)))
		lines = append(lines, drawViolations(s.Violations, style)...)
	}
	return lines
}

// drawViolations returns each violation with the records that prove it.
func drawViolations(violations []rackv1alpha1.ComplianceViolation, style terminal.Style) []string {
	const indent = "    "
	var lines []string
	for _, v := range violations {
		title := fmt.Sprintf("  %s  %s  Mac %s", cmdutil.Time(v.Time.Time), terminal.Clean(v.Rule), terminal.Clean(v.SerialNumber))
		lines = append(lines, style.Paint(terminal.Red, terminal.Cut(title, style.Width)))
		details := terminal.Wrap(terminal.Clean(v.Message), style.Width-len(indent))
		if len(v.Records) > 0 {
			details = append(details, terminal.Wrap("records: "+terminal.Clean(strings.Join(v.Records, ", ")), style.Width-len(indent))...)
		}
		for _, detail := range details {
			lines = append(lines, indent+detail)
		}
	}
	return lines
}

func verdict(v rackv1alpha1.ComplianceVerdict) terminal.Cell {
	colour := terminal.Red
	switch v {
	case rackv1alpha1.ComplianceCompliant:
		colour = terminal.Green
	case rackv1alpha1.ComplianceIncomplete:
		colour = terminal.Yellow
	}
	return terminal.Cell{Text: terminal.Clean(string(v)), Colour: colour}
}

// day returns a time, without the hours if it is a midnight.
func day(t time.Time) string {
	if t = t.UTC(); t.Equal(t.Truncate(24 * time.Hour)) {
		return t.Format(time.DateOnly)
	}
	return cmdutil.Time(t)
}
