package simulate

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"macrack.io/macrack/runners/pkg/floor"
)

// Result is the outcome of a policy.
type Result struct {
	// Policy is the name of the policy.
	Policy string
	// ChassisDays is the time for which Macs are paid, in days.
	ChassisDays float64
	// P50, P95 and P99 are percentiles of the time for which jobs waited.
	P50, P95, P99 time.Duration
	// Utilisation is the share of the paid slots that ran jobs, from 0 to 1.
	Utilisation float64
}

// forever is longer than any trace.
const forever = 100 * 365 * 24 * time.Hour

// naiveIdle is the idle time after which the policy "release when idle" deletes a lease.
const naiveIdle = 10 * time.Minute

// Compare replays a trace with four policies: the floor rule; keep all, which never deletes a
// lease; release when idle, which ignores floors; and the oracle, which knows the future.
func Compare(jobs []Job, limits floor.Limits, timing Timing) []Result {
	rule := newReplay(jobs, limits, timing, func(*floor.Facts) {})
	keepAll := newReplay(jobs, limits, timing, func(f *floor.Facts) { f.Limits.KeepIdle = forever })
	naive := newReplay(jobs, limits, timing, func(f *floor.Facts) {
		f.Limits.KeepIdle, f.Limits.DecideBefore, f.Expected = naiveIdle, forever, 0
	})
	return []Result{
		keepAll.result("floor rule", rule.paid(), rule.runs),
		keepAll.result("keep all", keepAll.paid(), keepAll.runs),
		keepAll.result("release when idle", naive.paid(), naive.runs),
		keepAll.result("oracle", oracle(keepAll), keepAll.runs),
	}
}

func (r *replay) result(policy string, paid time.Duration, runs []run) Result {
	waits := make([]time.Duration, 0, len(runs))
	var busy time.Duration
	for _, j := range runs {
		waits = append(waits, j.start.Sub(j.queued))
		busy += j.end.Sub(j.start)
	}
	slices.Sort(waits)
	percentile := func(p int) time.Duration { return waits[(len(waits)-1)*p/100] }
	return Result{
		Policy: policy, ChassisDays: paid.Hours() / 24,
		P50: percentile(50), P95: percentile(95), P99: percentile(99),
		Utilisation: busy.Hours() / (paid.Hours() * float64(r.limits.PerLease)),
	}
}

// rows returns the results as a table; its first column is headed by the name of the trace.
func rows(name string, results []Result) [][]string {
	best := results[len(results)-1].ChassisDays
	rows := [][]string{{name, "chassis-days", "of oracle", "wait p50", "wait p95", "wait p99", "utilisation"}}
	for _, r := range results {
		rows = append(rows, []string{
			r.Policy, fmt.Sprintf("%.1f", r.ChassisDays), fmt.Sprintf("%.0f %%", 100*r.ChassisDays/best),
			r.P50.Round(time.Second).String(), r.P95.Round(time.Second).String(), r.P99.Round(time.Second).String(),
			fmt.Sprintf("%.0f %%", 100*r.Utilisation),
		})
	}
	return rows
}

// Print writes the results for a trace as a table for a terminal.
func Print(w io.Writer, name string, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i, row := range rows(name, results) {
		line := strings.Join(row, "\t")
		if i == 0 {
			line = strings.ToUpper(line)
		}
		fmt.Fprintln(table, line)
	}
	return table.Flush()
}

// goal returns what the floor rule reached against its goal.
func goal(results []Result) string {
	rule, keepAll, oracle := results[0], results[1], results[len(results)-1]
	return fmt.Sprintf("The floor rule costs %.1f %% more than the oracle (goal: 10 %% at most). Its p95 wait is %s longer than that\nof keep all (goal: 0s).",
		100*(rule.ChassisDays/oracle.ChassisDays-1), max(rule.P95-keepAll.P95, 0).Round(time.Second))
}

// PrintMarkdown writes the results for a trace as a table in Markdown, with what the floor rule
// reached against its goal.
func PrintMarkdown(w io.Writer, name string, results []Result) error {
	var b strings.Builder
	for i, row := range rows(name, results) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|---" + strings.Repeat("|---:", len(row)-1) + "|\n")
		}
	}
	b.WriteString("\n" + goal(results) + "\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}
