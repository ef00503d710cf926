package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is one comparison. For a bound without a peer, the peer is the bound.
type Result struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	Ours float64 `json:"ours"`
	Peer float64 `json:"peer"`
	// Ratio is ours to the peer's, or for throughput the peer's to ours: smaller is better.
	Ratio float64 `json:"ratio"`
	// Goal is the upper bound of the ratio; absent if the result is for information only.
	Goal float64 `json:"goal,omitempty"`
}

// less adds a result for which less is better.
func (b *bench) less(name, unit string, ours, peer, goal float64) {
	b.results = append(b.results, Result{name, unit, ours, peer, ours / peer, goal})
}

// more adds a result for which more is better.
func (b *bench) more(name, unit string, ours, peer, goal float64) {
	b.results = append(b.results, Result{name, unit, ours, peer, peer / ours, goal})
}

func writeResults(path string, results []Result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func printResults(out io.Writer, results []Result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEASURED\tUNIT\tOURS\tPEER\tRATIO\tGOAL\t")
	for _, r := range results {
		goal, verdict := "", ""
		if r.Goal != 0 {
			goal, verdict = fmt.Sprintf("<= %.2f", r.Goal), "met"
			if r.Ratio > r.Goal {
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.2f\t%s\t%s\n", r.Name, r.Unit, r.Ours, r.Peer, r.Ratio, goal, verdict)
	}
	_ = w.Flush()
}

// quantile returns the q-quantile of values.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func median(values []time.Duration) time.Duration { return quantile(values, 0.5) }

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
