// Command bench compares macrack with common alternatives: custom resources with a validating
// webhook on the same kube-apiserver, separate writes in place of one transaction, and SQLite in
// place of the ledger. It starts a separate control plane whose etcds sync to disk, and alternates
// between the two sides. It prints tables in Markdown, or writes them into a document, and writes
// .dev/bench.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
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

	scaleMacs []int         // sizes of the fleet
	settling  time.Duration // the pause before a fleet is measured
	window    time.Duration // how long the processes are measured in a round
}

var (
	full = sizes{rounds: minimumRounds, slice: 2 * time.Second, planned: 300, rivals: 5 * time.Second, listed: 10_000, watchers: 200, events: 100, macs: 1000, perMac: 1000, imageMiB: 2048, adoptions: 9, idle: time.Minute, fleet: 500,
		scaleMacs: []int{1000, 2500, 5000}, settling: 2 * time.Minute, window: 20 * time.Second}
	short = sizes{rounds: 2, slice: time.Second, planned: 30, rivals: time.Second, listed: 500, watchers: 20, events: 20, macs: 50, perMac: 1000, imageMiB: 512, adoptions: 3, idle: 15 * time.Second, fleet: 20,
		scaleMacs: []int{20, 40}, settling: 10 * time.Second, window: 3 * time.Second}
)

// bench is the state of a run.
type bench struct {
	sizes
	root     string // of the repository
	dir      string // for files
	document string // whose blocks are replaced; may be empty
	cluster  *cluster.Cluster
	ours     *side
	twin     *side
	rate     float64 // instances a second

	// results and note are those of the current part.
	results []Result
	note    string
}

// part is a measurement.
type part struct {
	name string
	// shared parts use one cluster, which has no Macs. The others run first, while the machine is
	// idle.
	shared    bool
	simulated string
	run       func(context.Context) error
}

func (b *bench) parts() []part {
	return []part{
		{"images", false, "Real: the pull and the OCI registry, over loopback. Simulated: the disk is noise and machine code; the 1 Gbit/s link is a proxy.", b.measureImages},
		{"network", false, "Real: the network of an isolated guest, and the server, over loopback. Simulated: the guest, a network stack in the same process.", b.measureNetwork},
		{"agent", false, "Real: the control plane and the agent. Simulated: the Mac and its VMs.", b.measureAgent},
		{"fleet", false, "Real: the control plane and all agents, on this machine. Simulated: the Macs, and VMs that boot at once.", b.measureFleet},
		{"burst", false, "Real: the control plane and all agents, on this machine. Simulated: the Macs, and VMs that boot at once.", b.measureBurst},
		{"releases", false, "Real: the control plane, the controllers and all agents, on this machine. Simulated: the Macs, and 24 hours, by a clock that is put forward.", b.measureReleases},
		{"scale", false, "Real: the control plane with etcds that sync to disk, and 10 changes a second of labels and statuses. " +
			"The objects are written to the etcds directly. Simulated: the agents. Each has its own connection, watches what an agent watches, " +
			"sends heartbeats and reports its Node. Agents run on the same machine and are not counted. No ledger records exist.", b.measureScale},
		{"writes", true, "Real: both API servers, and etcds that sync to disk. Leases and Macs are written to etcd directly; no agents and no controllers run.", b.measureWrites},
		{"planned", true, "Real: the registry and its etcd, in one process, without HTTP. The strategies of the kinds are empty.", b.measurePlanned},
		{"reads", true, "Real: both API servers. The instances are written to etcd directly; no agents and no controllers run.", b.measureReads},
		{"memory", true, "Real: macrack-apiserver and its etcd. The objects are written to etcd directly; no agents and no controllers run.", b.measureMemory},
		{"compliance", true, "Real: the report, on stored records in a file. The records are generated.", b.measureCompliance},
	}
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == reportCommand {
		exit(reportChild(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 2 && os.Args[1] == macsCommand {
		exit(runMacs(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == agentsCommand {
		exit(runAgents(os.Args[2:]))
	}
	b := &bench{sizes: full}
	var names []string
	for _, p := range b.parts() {
		names = append(names, p.name)
	}
	quick := flag.Bool("short", false, "take few samples of small sizes: for development, not for conclusions")
	parts := flag.String("parts", strings.Join(names, ","), "what to measure")
	var scaleMacs []int
	fleet := flag.Int("fleet", 0, "how many Macs the fleet has (default 500)")
	flag.Func("scale", "the numbers of Macs of part scale, ascending (default 500,1000,2500,5000)", func(list string) error {
		scaleMacs = nil
		for _, text := range strings.Split(list, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n <= 0 {
				return fmt.Errorf("invalid number of Macs %q", text)
			}
			scaleMacs = append(scaleMacs, n)
		}
		if !slices.IsSorted(scaleMacs) {
			return errors.New("the numbers must ascend")
		}
		return nil
	})
	flag.Float64Var(&b.rate, "fleet-rate", 10, "how many instances of the fleet are created a second")
	flag.StringVar(&b.document, "write", "", "the document whose blocks of the measured parts are replaced, such as docs/performance.md")
	out := flag.String("out", "", "the file to write (default .dev/bench.json of the repository)")
	flag.Parse()

	if *quick {
		b.sizes = short
	}
	if *fleet != 0 {
		b.fleet = *fleet
	}
	if scaleMacs != nil {
		b.scaleMacs = scaleMacs
	}
	if *quick && b.document != "" {
		exit(errors.New("-write documents conclusions, and -short allows none; omit one of them"))
	}
	wanted := strings.Split(*parts, ",")
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			exit(fmt.Errorf("unknown part %q; use some of %s", name, strings.Join(names, ",")))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(b.run(ctx, wanted, *out))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (b *bench) run(ctx context.Context, wanted []string, out string) (err error) {
	if b.root, err = build.Root(); err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join(b.root, ".dev", "bench.json")
	}
	origin, err := provenance(ctx, b.root)
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "macrack-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer func() {
		if b.cluster != nil {
			err = errors.Join(err, b.cluster.Stop())
		}
	}()
	var blocks []Block
	var failures []error
	for _, p := range b.parts() {
		if !slices.Contains(wanted, p.name) {
			continue
		}
		block, err := b.measure(ctx, p, origin)
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // the other parts do not depend on it
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", p.name, err)
			failures = append(failures, fmt.Errorf("%s: %w", p.name, err))
			continue
		}
		fmt.Println(block.markdown())
		if blocks = append(blocks, block); b.document != "" {
			if err := rewrite(b.document, block); err != nil {
				return err
			}
		}
		if err := writeBlocks(out, blocks); err != nil {
			return err
		}
	}
	return errors.Join(failures...)
}

// measure runs a part.
func (b *bench) measure(ctx context.Context, p part, origin Provenance) (Block, error) {
	fmt.Fprintf(os.Stderr, "measuring: %s\n", p.name)
	if p.shared && b.cluster == nil {
		c, err := cluster.Start(ctx, cluster.Options{Apiservers: 1, Sync: true})
		if err != nil {
			return Block{}, err
		}
		b.cluster = c
		if err := b.prepare(ctx); err != nil {
			return Block{}, err
		}
	}
	b.results, b.note = nil, ""
	err := p.run(ctx)
	return Block{Part: p.name, Provenance: origin, Simulated: p.simulated, Results: b.results, Note: b.note}, err
}
