// Package chaos injects faults at every fault point of the agent and the runners. It kills the
// agent and the processes of its virtual machines between any two steps. Power is lost, the disk is
// full, files are torn, sockets are hijacked, the API is unreachable, and clocks jump. After each
// fault it compares the state in the API with the state of the system.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/build"
)

// Sizes are the numbers of faults of each family.
type Sizes struct {
	AgentKills  int
	RunnerKills int
	// Places is the number of fault points that are armed, in each way; 0: all.
	Places int
	// Scrubs is the number of armed fault points of a scrub; 0: all.
	Scrubs int
	// Torn is the number of kinds of damage for each file; 0: all.
	Torn int
	// CacheFiles is the number of files that a guest makes in a cache; 0: none.
	CacheFiles int
	Outage     time.Duration
	Cycles     int
	APICycles  int
	// Patient enables faults that the agent tolerates for a minute before it acts.
	Patient bool
}

// Long and Short are the sizes of `make chaos` and of `go test`.
var (
	Long  = Sizes{AgentKills: 100, RunnerKills: 20, CacheFiles: 1_000_000, Outage: 90 * time.Second, Cycles: 10_000, APICycles: 300, Patient: true}
	Short = Sizes{AgentKills: 3, RunnerKills: 1, Places: 3, Scrubs: 1, Torn: 1, Outage: 4 * time.Second, Cycles: 200, APICycles: 3}
)

// Options of a run.
type Options struct {
	Sizes
	// Families are the names of the families to run; all if empty.
	Families []string
	// Place, if not empty, is a part of the names of the fault points to try.
	Place string
	// OnlyCycles, if not 0, overrides Sizes.Cycles.
	OnlyCycles int
	// Binaries is a folder with the programs chaos and macrack-vm, built with the tag "faults". If
	// it is empty, they are built.
	Binaries string
	// Keep is the folder for the logs if there are violations.
	Keep string
	Out  io.Writer
}

// ErrViolations means that a check failed after a fault.
var ErrViolations = errors.New("a check failed after a fault")

// family is a kind of fault.
type family struct {
	name string
	run  func(context.Context, *run) error
}

// families are in the order in which they run. Families that need time to pass, or leave
// quarantines behind, come last.
var families = []family{
	{"agent-kills", agentKills},
	{"runner-kills", runnerKills},
	{"places", places},
	{"disk-full", diskFull},
	{"torn-files", tornFiles},
	{"orphans", orphans},
	{"outage", outage},
	{"clock", clockSteps},
	{"caches", caches},
	{"networks", networks},
	{"cycles", cycles},
	{"hijack", hijack},
	{"hung-runner", hungRunner},
	{"stuck-kernel", stuckKernel},
	{"scrub", scrubs},
}

// run is the state of one run.
type run struct {
	Options
	*world
	// reached is the instance with which a place was reached; down means that it was being deleted.
	reached string
	down    bool

	faults, survived int
	violations       []string
}

// Run runs the families on a separate control plane.
func Run(ctx context.Context, opts Options) error {
	var known []string
	for _, f := range families {
		known = append(known, f.name)
	}
	for _, name := range opts.Families {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown family of faults %q; use one of %s", name, strings.Join(known, ", "))
		}
	}
	if opts.OnlyCycles != 0 {
		opts.Cycles = opts.OnlyCycles
	}
	if opts.Binaries == "" {
		dir, err := Build(ctx)
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		opts.Binaries = dir
	}
	w, err := newWorld(ctx, opts.Binaries)
	if err != nil {
		return err
	}
	r := &run{Options: opts, world: w}
	err = r.all(ctx)
	if (err != nil || len(r.violations) > 0) && opts.Keep != "" {
		err = errors.Join(err, r.keep(opts.Keep))
	}
	if stopErr := w.stop(); stopErr != nil {
		r.violation("stopping the control plane failed: %v", stopErr)
	}
	if err != nil {
		r.violation("the run was aborted: %v", err)
	}
	for _, v := range r.violations {
		fmt.Fprintln(opts.Out, "violation:", v)
	}
	fmt.Fprintf(opts.Out, "chaos: faults=%d survived=%d/%d violations=%d\n", r.faults, r.survived, r.faults, len(r.violations))
	if len(r.violations) > 0 {
		return ErrViolations
	}
	return nil
}

func (r *run) all(ctx context.Context) error {
	for _, f := range families {
		if len(r.Families) > 0 && !slices.Contains(r.Families, f.name) {
			continue
		}
		before, began := r.faults, time.Now()
		if err := f.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		fmt.Fprintf(r.Out, "%-14s %5d faults in %s\n", f.name, r.faults-before, time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

// fault runs one fault and checks its result: check returns an error for each broken condition.
func (r *run) fault(name string, check func() error) {
	r.faults++
	if err := check(); err != nil {
		r.violation("fault %d, %s: %v", r.faults, name, err)
		return
	}
	r.survived++
}

func (r *run) violation(format string, args ...any) {
	v := fmt.Sprintf(format, args...)
	fmt.Fprintln(r.Out, "VIOLATION:", v)
	r.violations = append(r.violations, v)
}

// keep copies the logs and the state folders of the Macs.
func (r *run) keep(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return exec.Command("cp", "-r", filepath.Join(r.tb.Cluster.Dir(), "log"), filepath.Join(r.tb.Cluster.Dir(), "macs"), dir).Run()
}

// Build builds the programs with the tag "faults" into a temporary folder.
func Build(ctx context.Context) (dir string, err error) {
	if dir, err = os.MkdirTemp("/tmp", "macrack-chaos-"); err != nil {
		return "", err
	}
	for name, path := range map[string]string{"chaos": "./test/chaos/cmd", "macrack-vm": "./cmd/vm"} {
		if err := build.Program(ctx, filepath.Join(dir, name), ".", path, "-tags=faults"); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}
