// Command bench compares macrack with common alternatives: custom resources with a validating
// webhook on the same kube-apiserver, separate writes in place of one transaction, and SQLite in
// place of the ledger. It starts a separate control plane whose etcds sync to disk, alternates
// between the two sides, prints a table, and writes .dev/bench.json.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/build"

	"macrack.io/macrack/test/cluster"
)

// sizes are the sizes of the measurements.
type sizes struct {
	rounds   int           // of each side, in turn
	slice    time.Duration // how long clients write in a round
	planned  int           // creates of each variant
	rivals   time.Duration // how long 64 clients compete for a lease
	listed   int           // instances
	watchers int
	events   int // events for each watcher
	macs     int
	perMac   int // records of each Mac
	imageMiB int // the disk of an image

	adoptions int           // restarts of an agent
	idle      time.Duration // how long an agent is watched
	fleet     int           // Macs, with two virtual machines each
}

var (
	full  = sizes{rounds: 5, slice: 2 * time.Second, planned: 300, rivals: 5 * time.Second, listed: 10_000, watchers: 200, events: 100, macs: 1000, perMac: 1000, imageMiB: 2048, adoptions: 9, idle: time.Minute, fleet: 500}
	short = sizes{rounds: 2, slice: time.Second, planned: 30, rivals: time.Second, listed: 500, watchers: 20, events: 20, macs: 50, perMac: 1000, imageMiB: 512, adoptions: 3, idle: 15 * time.Second, fleet: 20}
)

// bench is the state of a run.
type bench struct {
	sizes
	dir     string // for files
	cluster *cluster.Cluster
	ours    *side
	twin    *side
	results []Result
	rate    float64 // instances a second
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == reportCommand {
		exit(reportChild(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 2 && os.Args[1] == macsCommand {
		exit(runMacs(os.Args[2:]))
	}
	quick := flag.Bool("short", false, "take few samples of small sizes: for development, not for conclusions")
	parts := flag.String("parts", "writes,planned,reads,memory,compliance,images,agent,fleet", "what to measure")
	fleet := flag.Int("fleet", 0, "how many Macs the fleet has (default 500)")
	rate := flag.Float64("fleet-rate", 10, "how many instances of the fleet are asked for a second")
	out := flag.String("out", "", "the file to write (default .dev/bench.json of the repository)")
	flag.Parse()

	b := &bench{sizes: full}
	if *quick {
		b.sizes = short
	}
	if *fleet != 0 {
		b.fleet = *fleet
	}
	b.rate = *rate
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(b.run(ctx, strings.Split(*parts, ","), *out))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (b *bench) run(ctx context.Context, parts []string, out string) (err error) {
	root, err := build.Root()
	if err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join(root, ".dev", "bench.json")
	}
	if b.dir, err = os.MkdirTemp("", "macrack-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer func() { printResults(os.Stdout, b.results) }()
	// Parts without a cluster, or with their own, run while the machine is idle.
	if err := b.measure(ctx, out, parts, []part{{"images", b.measureImages}, {"agent", b.measureAgent}, {"fleet", b.measureFleet}}); err != nil {
		return err
	}
	shared := []part{
		{"writes", b.measureWrites},
		{"planned", b.measurePlanned},
		{"reads", b.measureReads},
		{"memory", b.measureMemory},
		{"compliance", b.measureCompliance},
	}
	if !slices.ContainsFunc(shared, func(p part) bool { return slices.Contains(parts, p.name) }) {
		return nil
	}
	if b.cluster, err = cluster.Start(ctx, cluster.Options{Apiservers: 1, Sync: true}); err != nil {
		return err
	}
	defer func() {
		if stopErr := b.cluster.Stop(); err == nil {
			err = stopErr
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	return b.measure(ctx, out, parts, shared)
}

// part is a measurement.
type part struct {
	name string
	run  func(context.Context) error
}

// measure runs the selected parts.
func (b *bench) measure(ctx context.Context, out string, wanted []string, parts []part) error {
	for _, part := range parts {
		if !slices.Contains(wanted, part.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", part.name)
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		// The results of earlier parts are kept if a later part fails.
		if err := writeResults(out, b.results); err != nil {
			return err
		}
	}
	return nil
}
