// Package race proves that the three rules and the ledger hold when clients race. Many clients use
// two servers on an etcd of three members. All servers and members are separate processes that are
// killed at random, while their shared clock jumps from floor to floor. A checker that shares no
// code with the servers replays the history of etcd.
package race

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/race/check"
)

// race is the state that all clients share.
type race struct {
	Options
	clock   *fileClock
	servers []*child
	members []*child
	down    []atomic.Bool // servers known to be down
	began   time.Time

	macs      []*mac
	byName    map[string]*mac
	tenants   []string
	images    []string
	pending   pool[*rackv1alpha1.MacNodeLease]
	leftovers pool[*instancev1alpha1.MacOSInstance]
	names     atomic.Int64

	total     counts
	kinds     sync.Map // of *counts
	kills     atomic.Int64
	histories check.Histories

	samplesMu sync.Mutex
	samples   map[string][]string
}

// Run runs a race. An error means that it could not run, not that a rule was violated.
func Run(ctx context.Context, options Options) (*Result, error) {
	r := &race{Options: options, byName: map[string]*mac{}, samples: map[string][]string{}, down: make([]atomic.Bool, options.Servers)}
	for n := range options.Macs {
		m := &mac{name: fmt.Sprintf("mac-%d", n), serials: []string{serial(n), serial(n ^ 1)}}
		r.macs = append(r.macs, m)
		r.byName[m.name] = m
	}
	for n := range 8 {
		r.tenants = append(r.tenants, fmt.Sprintf("tenant-%d", n))
	}
	for n := range 3 {
		r.images = append(r.images, fmt.Sprintf("macos-%d", n))
	}
	defer r.stop()
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

// run runs the clients and the checks.
func (r *race) run(ctx context.Context) (*Result, error) {
	etcd, err := r.etcd(r.members...)
	if err != nil {
		return nil, err
	}
	defer etcd.Close()
	checker, until, replayed := check.New(), make(chan int64, 1), make(chan error, 1)
	go func() { replayed <- checker.Replay(ctx, etcd, until) }()

	workers := make([]*worker, r.Clients)
	for id := range workers {
		workers[id] = &worker{race: r, id: id}
		for _, server := range r.servers {
			client, err := newClient(server.role.Listen)
			if err != nil {
				return nil, err
			}
			workers[id].clients = append(workers[id].clients, client)
		}
	}
	r.began = time.Now()
	racing, done := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for _, w := range workers {
		clients.Go(func() { w.run(ctx) })
	}
	others, racing := errgroup.WithContext(racing)
	others.Go(func() error { return r.turnClock(racing) })
	others.Go(func() error { return r.killAll(racing) })
	others.Go(func() error { return r.progress(racing) })
	clients.Wait()
	took := time.Since(r.began)
	done()
	if err := others.Wait(); err != nil {
		return nil, err
	}
	result := &Result{
		Attempts: r.total.attempts.Load(), Successes: r.total.successes.Load(), Refusals: r.total.refusals.Load(), Conflicts: r.total.conflicts.Load(),
		Kinds: map[string][4]int64{}, Refused: r.samples, Kills: r.kills.Load(), Took: took,
	}
	r.kinds.Range(func(kind, v any) bool {
		c := v.(*counts)
		result.Kinds[kind.(string)] = [4]int64{c.successes.Load(), c.refusals.Load(), c.conflicts.Load(), c.unknown.Load()}
		return true
	})

	fmt.Fprintf(r.Out, "the clients have finished after %s; checking\n", took.Round(time.Second))
	if result.Report, err = r.report(ctx); err != nil {
		return nil, err
	}
	// A server that has lost its client may still carry out its last request.
	for _, server := range r.servers {
		server.Kill()
	}
	marker, err := etcd.Put(ctx, "/registry/~", "the end")
	if err != nil {
		return nil, err
	}
	until <- marker.Header.Revision
	if err := <-replayed; err != nil {
		return nil, err
	}
	if err := checker.Finish(ctx, etcd); err != nil {
		return nil, err
	}
	for _, w := range workers {
		result.Acks += len(w.acks)
		checker.CheckAcks(w.acks)
	}
	result.Tables, result.Operations, result.Undecided = checker.CheckHistories(&r.histories, 20*time.Second)
	result.Violations, result.First = checker.Violations()
	if verdict := result.Report.Verdict; verdict != rackv1alpha1.ComplianceCompliant {
		result.Violations++
		result.First = append(result.First, check.Violation{Subject: "compliancereport", Rule: "Report", Message: fmt.Sprintf("the verdict of the servers is %s: %v", verdict, result.Report.Violations)})
	}
	result.Revisions, result.Records = checker.Revisions(), checker.Records()
	return result, nil
}

// report requests a report on the whole ledger from a server.
func (r *race) report(ctx context.Context) (rackv1alpha1.ComplianceReportStatus, error) {
	ctx = asAdmin(ctx)
	name := fmt.Sprintf("2026-01-01..%s", r.clock.Now().AddDate(0, 0, 1).Format(time.DateOnly))
	var errs []error
	for _, server := range r.servers {
		client, err := newClient(server.role.Listen)
		if err != nil {
			return rackv1alpha1.ComplianceReportStatus{}, err
		}
		report, err := client.RackV1alpha1().ComplianceReports().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return report.Status, nil
		}
		errs = append(errs, err)
	}
	return rackv1alpha1.ComplianceReportStatus{}, errors.Join(errs...)
}

// run makes attempts until there are enough and a process was killed.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil && (w.Limit == 0 || time.Since(w.began) < w.Limit) && (w.total.attempts.Load() < w.Attempts || w.KillEvery > 0 && w.kills.Load() == 0) {
		before := w.total.attempts.Load()
		if rand.IntN(10) > 0 || !w.sweep(ctx) {
			w.attempt(ctx, w.target().view())
		}
		if w.total.attempts.Load() == before {
			time.Sleep(time.Millisecond) // all servers are down
		}
	}
}

// target returns a Mac, preferably one of the few that the other clients choose too.
func (w *worker) target() *mac {
	const few = 6
	if rand.IntN(10) == 0 {
		return pick(w.macs)
	}
	start := int(time.Since(w.began)/(1500*time.Millisecond)) * few
	return w.macs[(start+rand.IntN(few))%len(w.macs)]
}

func (r *race) progress(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Second):
			fmt.Fprintf(r.Out, "%s: %d attempts, %d successes, %d refusals, %d conflicts, %d processes killed\n", time.Since(r.began).Round(time.Second),
				r.total.attempts.Load(), r.total.successes.Load(), r.total.refusals.Load(), r.total.conflicts.Load(), r.kills.Load())
		}
	}
}
