// Command bench measures macrack beside what is usual: custom resources with a validating webhook on the same kube-apiserver, separate
// writes in place of one transaction, and SQLite in place of the ledger. It starts a control plane of its own, whose etcds sync to disk,
// alternates between the two sides, prints a table, and writes .dev/bench.json.
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

	"macrack.io/macrack/test/cluster"
)

// sizes is how much is measured.
type sizes struct {
	rounds   int           // of each side, in turn
	slice    time.Duration // how long clients write in a round
	planned  int           // creates of each variant
	rivals   time.Duration // how long 64 clients fight for a lease
	listed   int           // instances
	watchers int
	events   int // that each watcher gets
	macs     int
	perMac   int // records of each Mac
	imageMiB int // the disk of an image
}

var (
	full  = sizes{rounds: 5, slice: 2 * time.Second, planned: 300, rivals: 5 * time.Second, listed: 10_000, watchers: 200, events: 100, macs: 1000, perMac: 1000, imageMiB: 2048}
	short = sizes{rounds: 2, slice: time.Second, planned: 30, rivals: time.Second, listed: 500, watchers: 20, events: 20, macs: 50, perMac: 1000, imageMiB: 512}
)

// bench is a run.
type bench struct {
	sizes
	dir     string // for files
	cluster *cluster.Cluster
	ours    *side
	twin    *side
	results []Result
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == reportCommand {
		exit(reportChild(os.Args[2], os.Args[3]))
	}
	quick := flag.Bool("short", false, "take few samples of small sizes: for development, not for conclusions")
	parts := flag.String("parts", "writes,planned,reads,memory,compliance,images", "what to measure")
	out := flag.String("out", "", "the file to write (default .dev/bench.json of the repository)")
	flag.Parse()

	b := &bench{sizes: full}
	if *quick {
		b.sizes = short
	}
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
	root, err := cluster.RepoRoot()
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
	if !slices.Equal(parts, []string{"images"}) {
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
	}
	defer func() { printResults(os.Stdout, b.results) }()
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"writes", b.measureWrites},
		{"planned", b.measurePlanned},
		{"reads", b.measureReads},
		{"memory", b.measureMemory},
		{"compliance", b.measureCompliance},
		{"images", b.measureImages},
	} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", part.name)
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		// What was measured is kept if a later part fails.
		if err := writeResults(out, b.results); err != nil {
			return err
		}
	}
	return nil
}
