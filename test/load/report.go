package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"macrack.io/macrack/test/stats"
)

// ratioLimit is the highest accepted ratio of a step's p99 during the flood to the one before.
const ratioLimit = 2

// report prints the times of each step and the closing line. It fails if the flood cost the other
// tenant more than it may.
func report(out io.Writer, before, during durations, sent map[string]int64, o *observer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "step\trounds\tquiet p50\tp99\tflood p50\tp99\tratio of p99")
	worst := 0.0
	for _, step := range steps {
		quiet, flooded := stats.Quantile(before[step], 0.99), stats.Quantile(during[step], 0.99)
		ratio := float64(flooded) / float64(quiet)
		worst = max(worst, ratio)
		fmt.Fprintf(t, "%s\t%d, %d\t%s\t%s\t%s\t%s\t%.2f\n", step, len(before[step]), len(during[step]),
			round(stats.Quantile(before[step], 0.5)), round(quiet), round(stats.Quantile(during[step], 0.5)), round(flooded), ratio)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		fmt.Fprintf(out, "flood: %s: %d\n", name, sent[name])
	}
	if sent["refused with 429"] == 0 {
		return errors.New("no request of the flood was refused, so it was none")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(out, "load: steps=%d leaderships_lost=%d offline=%d flaps=%d p99_ratio=%.2f\n",
		len(steps), o.leadershipsLost, o.offline, o.flaps, worst)
	if o.leadershipsLost > 0 || o.offline > 0 || o.flaps > 0 {
		return errors.New("the flood of one tenant disturbed the fleet")
	}
	if worst > ratioLimit {
		return fmt.Errorf("the flood of one tenant slowed another tenant by more than a factor of %d", ratioLimit)
	}
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
