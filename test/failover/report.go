package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

type result struct {
	fault   fault
	outages []outage
}

// report prints the outages of each fault and the closing line. It fails if a goal is
// missed or an acknowledged write was lost.
func report(out io.Writer, results []result, lost int) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "fault\ttries\toutage p50\tmax\tgoal\tfailed requests")
	met := 0
	for _, r := range results {
		var lasted []time.Duration
		sent, failed := 0, 0
		for _, o := range r.outages {
			lasted = append(lasted, o.lasted)
			sent += o.sent
			failed += o.failed
		}
		slices.Sort(lasted)
		longest := lasted[len(lasted)-1]
		if longest <= r.fault.goal && (!r.fault.planned || failed == 0) {
			met++
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d of %d\n", r.fault.name, len(lasted), round(lasted[len(lasted)/2]), round(longest), r.fault.goal, failed, sent)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "failover: faults=%d goals_met=%d lost=%d\n", len(results), met, lost)
	if lost > 0 {
		return fmt.Errorf("%d acknowledged writes were lost", lost)
	}
	if met < len(results) {
		return fmt.Errorf("%d of %d outages are longer than their goals", len(results)-met, len(results))
	}
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
