package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// A step is a part of the test with its own verdict. Later steps need the earlier ones.
type step struct {
	name string
	// install means that the step is one of the installation, from nothing to a leased Mac.
	install bool
	run     func(ctx context.Context) error
}

// result is the outcome of the steps that have run.
type result struct {
	Steps  int `json:"steps"`
	Passed int `json:"passed"`
	Failed int `json:"failed"`
}

// count counts a step, and prints its verdict.
func (r *result) count(name string, took time.Duration, err error) {
	r.Steps++
	if err != nil {
		r.Failed++
		fmt.Printf("✗ %s (%s): %v\n", name, round(took), err)
		return
	}
	r.Passed++
	fmt.Printf("✓ %s (%s)\n", name, round(took))
}

func (r *result) add(other result) {
	r.Steps += other.Steps
	r.Passed += other.Passed
	r.Failed += other.Failed
}

func (p *plan) resultFile() string { return filepath.Join(p.Dir, "result.json") }

// runSteps runs the steps until one fails. The steps after it count, but do not pass.
func (w *world) runSteps(ctx context.Context, steps []step) error {
	var r result
	watch := stopwatch{{"make images", w.ImagesTook}}
	for i, s := range steps {
		began := time.Now()
		w.note = ""
		err := s.run(ctx)
		took := time.Since(began)
		r.count(s.name, took, err)
		if w.note != "" {
			fmt.Printf("  %s\n", w.note)
		}
		if err != nil {
			r.Steps += len(steps) - i - 1
		}
		if err := errors.Join(err, w.writeResult(r)); err != nil {
			return err
		}
		if s.install {
			watch = append(watch, lap{s.name, took})
		}
		if s.name == lastInstallStep {
			watch.print(os.Stdout)
		}
		if s.name == w.Until {
			return nil
		}
	}
	return nil
}

func (p *plan) writeResult(r result) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(p.resultFile(), data, 0o644)
}

func (p *plan) readResult() (r result, err error) {
	data, err := os.ReadFile(p.resultFile())
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// A stopwatch has the durations of the parts of the installation.
type stopwatch []lap

type lap struct {
	name string
	took time.Duration
}

func (s stopwatch) print(out io.Writer) {
	var total time.Duration
	fmt.Fprintln(out, "stopwatch: from a checkout to the first leased Mac, on Nodes that are Ready")
	for _, lap := range s {
		total += lap.took
		fmt.Fprintf(out, "  %-28s %8s  %8s\n", lap.name, round(lap.took), round(total))
	}
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
