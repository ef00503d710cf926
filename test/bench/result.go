package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"macrack.io/macrack/test/stats"
)

// Result is a measurement, compared with an alternative if there is one.
type Result struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Ours and Peer are medians over the rounds.
	Ours float64 `json:"ours"`
	Peer float64 `json:"peer,omitempty"`
	// Ratio is ours to the peer's, or for throughput the peer's to ours: smaller is better.
	Ratio float64 `json:"ratio,omitempty"`
	// Goal is the upper bound of the ratio, and without a peer of ours; absent if the result is for
	// information only.
	Goal float64 `json:"goal,omitempty"`
	// Rounds is the number of rounds.
	Rounds int `json:"rounds"`
}

func (r Result) met() bool {
	if r.Peer != 0 {
		return r.Ratio <= r.Goal
	}
	return r.Ours <= r.Goal
}

// less adds a result for which less is better. Ours and the peer's have a value for each round.
func (b *bench) less(name, unit string, ours, peer []float64, goal float64) {
	o, p := stats.Median(ours), stats.Median(peer)
	b.results = append(b.results, Result{name, unit, o, p, o / p, goal, len(ours)})
}

// more adds a result for which more is better.
func (b *bench) more(name, unit string, ours, peer []float64, goal float64) {
	o, p := stats.Median(ours), stats.Median(peer)
	b.results = append(b.results, Result{name, unit, o, p, p / o, goal, len(ours)})
}

// alone adds a result without an alternative. The goal limits the result itself.
func (b *bench) alone(name, unit string, ours []float64, goal float64) {
	b.results = append(b.results, Result{Name: name, Unit: unit, Ours: stats.Median(ours), Goal: goal, Rounds: len(ours)})
}

func writeBlocks(path string, blocks []Block) error {
	data, err := json.MarshalIndent(blocks, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// allMS returns the durations in milliseconds.
func allMS(durations []time.Duration) []float64 {
	values := make([]float64, len(durations))
	for i, d := range durations {
		values[i] = ms(d)
	}
	return values
}
