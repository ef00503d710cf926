package usage

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
)

// drawList returns a table of reports, with their tenants if all is set.
func drawList(reports []rackv1alpha1.UsageReport, all bool, style terminal.Style) []string {
	if len(reports) == 0 {
		return []string{"No leases had a Mac in these windows."}
	}
	header := []string{"WINDOW", "LEASES", "RUNNING", "DAYS", "TIME", "HELD", "UNPROVEN"}
	if all {
		header = append([]string{"TENANT"}, header...)
	}
	var rows [][]terminal.Cell
	for i := range reports {
		s := &reports[i].Status
		row := append([]terminal.Cell{text(reports[i].Name)}, numbers(s.Total, s.Running)...)
		row = append(row, terminal.Fault(s.Unproven))
		if all {
			row = append([]terminal.Cell{text(reports[i].Namespace)}, row...)
		}
		rows = append(rows, row)
	}
	asOf := "As of " + cmdutil.Time(reports[0].Status.AsOf.Time) + ". DAYS are billed periods of 24 hours of one Mac."
	return append(terminal.Table(style, header, rows), "", style.Paint(terminal.Faint, terminal.Cut(asOf, style.Width)))
}

// drawWindow returns the reports of tenants on one window, by class and SKU.
func drawWindow(reports []rackv1alpha1.UsageReport, o options, style terminal.Style) []string {
	if len(reports) == 0 {
		return []string{terminal.Cut("No leases had a Mac in "+terminal.Clean(o.window)+".", style.Width)}
	}
	lines := title(reports, o, style)
	header := []string{"CLASS", "SKU", "LEASES", "RUNNING", "DAYS", "TIME", "HELD"}
	if o.all {
		header = append([]string{"TENANT"}, header...)
	}
	lines = append(append(lines, ""), terminal.Table(style, header, classRows(reports, o.all))...)
	if o.leases {
		lines = append(append(lines, ""), drawLeases(reports, o.all, style)...)
	}
	return append(lines, drawUnproven(reports, style)...)
}

func title(reports []rackv1alpha1.UsageReport, o options, style terminal.Style) []string {
	s := &reports[0].Status
	of := "all tenants"
	if !o.all {
		of = terminal.Clean(reports[0].Namespace)
	}
	lines := []string{
		style.Paint(terminal.Bold, terminal.Cut(fmt.Sprintf("Usage of %s in %s", of, terminal.Clean(o.window)), style.Width)),
		terminal.Cut(fmt.Sprintf("From %s to %s, as of %s", minute(s.From), minute(s.To), cmdutil.Time(s.AsOf.Time)), style.Width),
	}
	if s.CoveredSince != nil {
		notice := "Use before " + cmdutil.Time(s.CoveredSince.Time) + " can be missing, because the ledger does not have all records."
		lines = append(lines, terminal.Wrap(notice, style.Width)...)
	}
	return lines
}

// classRows returns a row for each class and SKU of each tenant, and their total.
func classRows(reports []rackv1alpha1.UsageReport, all bool) [][]terminal.Cell {
	var rows [][]terminal.Cell
	var total, running rackv1alpha1.Usage
	for i := range reports {
		s := &reports[i].Status
		total, running = sum(total, s.Total), sum(running, s.Running)
		for _, c := range s.Classes {
			row := append([]terminal.Cell{text(cmp.Or(c.ClassName, "unknown")), text(c.SKU)}, numbers(c.Total, c.Running)...)
			if all {
				row = append([]terminal.Cell{text(reports[i].Namespace)}, row...)
			}
			rows = append(rows, row)
		}
	}
	last := append([]terminal.Cell{text("total"), text("")}, numbers(total, running)...)
	if all {
		last = append([]terminal.Cell{text("total"), text("")}, last[1:]...)
	}
	for i := range last {
		last[i].Colour = terminal.Bold
	}
	return append(rows, last)
}

func sum(a, b rackv1alpha1.Usage) rackv1alpha1.Usage {
	return rackv1alpha1.Usage{
		Leases: a.Leases + b.Leases, BillableDays: a.BillableDays + b.BillableDays,
		ChassisTime: metav1.Duration{Duration: a.ChassisTime.Duration + b.ChassisTime.Duration},
		HeldTime:    metav1.Duration{Duration: a.HeldTime.Duration + b.HeldTime.Duration},
	}
}

// drawLeases returns a table with a line for each lease.
func drawLeases(reports []rackv1alpha1.UsageReport, all bool, style terminal.Style) []string {
	var rows [][]terminal.Cell
	var listed, total int64
	for i := range reports {
		total += reports[i].Status.Total.Leases
		for _, l := range reports[i].Status.Leases {
			listed++
			until := text("running")
			if l.BillableUntil != nil {
				until = text(minute(*l.BillableUntil))
			}
			rows = append(rows, []terminal.Cell{
				text(nameOf(&reports[i], l, all)), text(l.SerialNumber), text(minute(l.BoundAt)), until,
				terminal.Number(l.BillableDays), text(hours(l.HeldTime.Duration)),
			})
		}
	}
	lines := terminal.Table(style, []string{"LEASE", "MAC", "BOUND", "BILLED-UNTIL", "DAYS", "HELD"}, rows)
	if listed < total {
		lines = append(lines, terminal.Cut(fmt.Sprintf("%d more leases are in the sums, but not in the reports.", total-listed), style.Width))
	}
	return lines
}

func nameOf(report *rackv1alpha1.UsageReport, l rackv1alpha1.LeaseUsage, all bool) string {
	if all {
		return report.Namespace + "/" + l.Name
	}
	return l.Name
}

// drawUnproven returns the leases whose use the records do not prove, with the causes.
func drawUnproven(reports []rackv1alpha1.UsageReport, style terminal.Style) []string {
	var lines []string
	for i := range reports {
		for _, l := range reports[i].Status.Leases {
			if l.Unproven == "" {
				continue
			}
			cause := fmt.Sprintf("Lease %s is unproven: %s", nameOf(&reports[i], l, true), l.Unproven)
			for _, line := range terminal.Wrap(terminal.Clean(cause), style.Width) {
				lines = append(lines, style.Paint(terminal.Red, line))
			}
		}
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}

// numbers returns the cells of a usage, with the leases that still run.
func numbers(total, running rackv1alpha1.Usage) []terminal.Cell {
	return []terminal.Cell{
		terminal.Number(total.Leases), terminal.Number(running.Leases), terminal.Number(total.BillableDays),
		text(hours(total.ChassisTime.Duration)), text(hours(total.HeldTime.Duration)),
	}
}

func text(s string) terminal.Cell { return terminal.Text(terminal.Clean(s)) }

// hours returns a time in hours and minutes, as kubectl get usagereports does. A day would be
// mistaken for a billable day.
func hours(d time.Duration) string {
	minutes := int64(d / time.Minute)
	return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
}

// minute returns a time in UTC, to the minute.
func minute(t metav1.Time) string { return t.UTC().Format("2006-01-02 15:04") }
