// Runners-demo runs CI jobs on simulated Macs with an adjustable clock: jobs arrive, virtual
// machines boot, run one job each and are replaced. A lease grows, is kept to its floor, and is
// returned.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/process"
	"macrack.io/macrack/test/testbed"
)

const tenant = "acme"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	tb, err := testbed.Start(ctx, testbed.Options{Macs: 3, GuestAgent: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.Stop()) }()
	listener, err := process.Listen(0)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: tb.ClockHandler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	d := &demo{Testbed: tb, out: os.Stdout, clock: "http://" + listener.Addr().String()}
	defer d.stop()
	if err := d.start(ctx); err != nil {
		return err
	}
	d.story(ctx)
	fmt.Fprintf(d.out, "\nrunners-demo: %d steps, %d as expected\n", d.steps, d.asExpected)
	if d.steps != d.asExpected {
		return fmt.Errorf("%d of %d steps failed; they are marked with ✗, and the logs are in %s", d.steps-d.asExpected, d.steps, filepath.Dir(tb.Log))
	}
	return ctx.Err()
}

// story runs the steps of the demo.
func (d *demo) story(ctx context.Context) {
	d.say("Three jobs arrive. There is no lease yet.")
	d.queue(ctx, 3, 30*time.Second)
	d.eventually(ctx, "two Macs are leased for them", func() bool { return d.count(ctx, "mnl", "Bound") >= 2 })
	d.eventually(ctx, "the jobs run, and a virtual machine is warm", func() bool { return d.jobsStarted(ctx) == 3 && d.warm(ctx) == 1 })
	d.show(ctx, "get", "mnl,mi", "-L", "runners.macrack.io/job")

	d.say("The jobs take four hours.")
	d.Advance(4 * time.Hour)
	d.eventually(ctx, "the jobs have ended", func() bool { return d.jobsLeft(ctx) == 0 })
	d.eventually(ctx, "each virtual machine was replaced, and four are warm", func() bool { return d.warm(ctx) == 4 })

	d.say("A job arrives while virtual machines are warm.")
	d.queue(ctx, 1, 2*time.Second)
	d.eventually(ctx, "it has ended", func() bool { return d.jobsLeft(ctx) == 0 })
	fmt.Fprintf(d.out, "  from queued to running: %s\n", d.lastWait(ctx))

	d.say("Sixteen hours pass without a job. The leases are kept, because their Macs are paid until the floor.")
	d.Advance(16 * time.Hour)
	d.eventually(ctx, "both leases are Bound", func() bool { return d.count(ctx, "mnl", "Bound") == 2 })

	d.say("macrack-runners restarts. Its state is in the objects. It only forgets when jobs came on earlier days.")
	d.restart(ctx)
	d.eventually(ctx, "both leases and four warm virtual machines are still there", func() bool {
		return d.count(ctx, "mnl", "Bound") == 2 && d.warm(ctx) == 4
	})

	d.say("The floor comes near. Surplus leases are deleted, and keep their Macs until the floor.")
	d.Advance(3*time.Hour + 50*time.Minute)
	d.eventually(ctx, "no lease is Bound", func() bool { return d.count(ctx, "mnl", "Bound") == 0 })
	d.show(ctx, "get", "mnl")
	d.say("The floor passes.")
	d.Advance(15 * time.Minute)
	d.eventually(ctx, "the Macs are returned", func() bool { return d.count(ctx, "mnl", "") == 0 })
	d.show(ctx, "get", "events", "--field-selector", "source=macrack-runners,involvedObject.kind=MacNodeLease",
		"-o", `custom-columns=LEASE:.involvedObject.name,REASON:.reason,MESSAGE:.message`)
	d.picture(ctx)
}

// picture shows what was paid and used, by the metrics.
func (d *demo) picture(ctx context.Context) {
	d.add(ctx)
	paid, busy := d.paid, d.busy
	d.say("The paid time and the used time.")
	const width = 50
	fmt.Fprintf(d.out, "  paid  %s %.2f chassis-days\n", strings.Repeat("█", width), paid/86400)
	used := 0
	if paid > 0 {
		used = max(int(busy/paid*width), 1)
	}
	fmt.Fprintf(d.out, "  used  %s%s %.2f chassis-days\n", strings.Repeat("█", used), strings.Repeat("░", width-used), busy/86400)
	d.check("two Macs were paid for one day each", paid > 1.9*86400 && paid < 2.1*86400)
	d.check("three jobs ran for four hours, each on half a Mac", busy > 0.24*86400 && busy < 0.26*86400)
}

// demo is a testbed with macrack-runners and a GitHub.
type demo struct {
	*testbed.Testbed
	out      io.Writer
	clock    string
	control  string
	metrics  string
	children []*process.Child
	runners  *process.Child
	// paid and busy are chassis-seconds.
	paid, busy float64

	steps, asExpected int
}

func (d *demo) say(text string) { fmt.Fprintf(d.out, "\n# %s\n", text) }

func (d *demo) check(what string, ok bool) {
	d.steps++
	mark := "✗"
	if ok {
		d.asExpected++
		mark = "✓"
	}
	fmt.Fprintf(d.out, "%s %s\n", mark, what)
}

// eventually is check for a condition that becomes true within three minutes.
func (d *demo) eventually(ctx context.Context, what string, condition func() bool) {
	deadline := time.Now().Add(3 * time.Minute)
	for !condition() && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
	}
	d.check(what, condition())
}

// show shows a command of the tenant and its output.
func (d *demo) show(ctx context.Context, args ...string) {
	fmt.Fprintf(d.out, "\n$ kubectl %s\n", strings.Join(args, " "))
	stdout, stderr, err := d.Kubectl(ctx, tenant, args...)
	fmt.Fprint(d.out, stdout, stderr)
	if err != nil {
		fmt.Fprintln(d.out, err)
	}
}
