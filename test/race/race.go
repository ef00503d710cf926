// Package race proves that the three rules and the ledger hold when clients race. Many clients use
// two servers on an etcd of three members. All servers and members are separate processes that are
// killed at random, while their shared clock jumps from floor to floor. A checker that shares no
// code with the servers replays the history of etcd.
package race

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"macrack.io/macrack/test/cluster/process"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/test/race/check"
)

// Options are the parameters of a race.
type Options struct {
	// Attempts is the total number of requests.
	Attempts int64
	// Limit bounds the time of the requests; 0 for no limit.
	Limit time.Duration
	// Clients is the number of concurrent clients.
	Clients int
	// Macs is the number of Macs.
	Macs int
	// Servers and Members are the numbers of servers and of etcd members.
	Servers, Members int
	// KillEvery is the interval at which a process is killed; 0 for never.
	KillEvery time.Duration
	// Cancel is the percentage of cancelled requests.
	Cancel int
	// Sample selects every nth lease and Mac, whose history is checked for linearizability.
	Sample int
	// Dir is the directory of the data and the logs.
	Dir string
	// Out receives progress messages.
	Out io.Writer
}

// NewOptions returns the options of a short race in a directory.
func NewOptions(dir string) Options {
	return Options{Attempts: 10000, Clients: 64, Macs: 50, Servers: 2, Members: 3, KillEvery: 5 * time.Second, Cancel: 3, Sample: 4, Dir: dir, Out: io.Discard}
}

// A Result is the result of a race.
type Result struct {
	// Attempts counts all requests that may have reached a server.
	Attempts int64
	// Successes, Refusals and Conflicts count requests with a known outcome. In a conflict another
	// client was faster; the request may be tried again.
	Successes, Refusals, Conflicts int64
	// Violations is the number of violations, and First has the first ones of each rule.
	Violations int64
	First      []check.Violation

	// Kinds has the outcomes of each kind of attempt.
	Kinds map[string][4]int64
	// Refused has examples of the refusals of each kind.
	Refused map[string][]string
	// Kills is the number of killed processes.
	Kills int64
	// Records is the number of records of each type.
	Records map[rackv1alpha1.AuditRecordType]int64
	// Revisions, Acks, Tables and Operations count the checked items; Undecided tables took too
	// long.
	Revisions                           int64
	Acks, Tables, Operations, Undecided int
	// Report is the servers' own compliance report at the end.
	Report rackv1alpha1.ComplianceReportStatus
	// Took is the time in which the clients raced.
	Took time.Duration
}

// String returns the result in one line.
func (r *Result) String() string {
	return fmt.Sprintf("race: attempts=%d successes=%d refusals=%d conflicts=%d violations=%d", r.Attempts, r.Successes, r.Refusals, r.Conflicts, r.Violations)
}

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

// start starts the etcd and the servers, and fills the catalogue.
func (r *race) start(ctx context.Context) error {
	addresses, err := process.FreeAddresses(2*r.Members + r.Servers)
	if err != nil {
		return err
	}
	clockFile := filepath.Join(r.Dir, "clock")
	if r.clock, err = openClock(clockFile, 0); err != nil {
		return err
	}
	var cluster, endpoints []string
	for n := range r.Members {
		cluster = append(cluster, fmt.Sprintf("etcd-%d=http://%s", n, addresses[2*n+1]))
		endpoints = append(endpoints, "http://"+addresses[2*n])
	}
	for n := range r.Members {
		name := fmt.Sprintf("etcd-%d", n)
		member, err := newChild(r.Dir, name, role{
			Listen: addresses[2*n], Member: name, Peer: addresses[2*n+1], Cluster: strings.Join(cluster, ","), Dir: filepath.Join(r.Dir, name),
		})
		if err != nil {
			return err
		}
		r.members = append(r.members, member)
	}
	for n := range r.Servers {
		server, err := newChild(r.Dir, fmt.Sprintf("server-%d", n), role{
			Listen: addresses[2*r.Members+n], Etcd: endpoints, Clock: clockFile, Skew: -time.Duration(n) * 2 * time.Second,
		})
		if err != nil {
			return err
		}
		r.servers = append(r.servers, server)
	}
	for _, p := range r.members {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range r.members {
		if err := p.WaitReady(ctx, p.healthy); err != nil {
			return err
		}
	}
	for _, p := range r.servers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range r.servers {
		if err := p.WaitReady(ctx, p.ready); err != nil {
			return err
		}
	}
	return r.fill(ctx)
}

func (r *race) stop() {
	for _, p := range slices.Concat(r.servers, r.members) {
		p.Kill()
	}
	if r.clock != nil {
		_ = r.clock.file.Close()
	}
}

func newImage(name string) *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: imagev1alpha1.MacOSImageSpec{
			Contents: []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1", Build: "25B78"}, {Name: "guest-agent", Version: "1.0"}},
			Source:   imagev1alpha1.ImageSource{Reference: "registry.example.com/macos:26.1", Digest: "sha256:" + strings.Repeat("26", 32)},
			DiskSize: scalar.MustParse("60Gi"),
		},
	}
}

// fill fills the catalogue.
func (r *race) fill(ctx context.Context) error {
	ctx = asAdmin(ctx)
	client, err := newClient(r.servers[0].role.Listen)
	if err != nil {
		return err
	}
	if _, err := client.RackV1alpha1().MacNodeClasses().Create(ctx, &rackv1alpha1.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "base"},
		Spec: rackv1alpha1.MacNodeClassSpec{
			Model: "Mac mini (2024)", ModelIdentifiers: []string{"Mac16,10"}, Chip: "Apple M4",
			Capacity:     rackv1alpha1.MachineResources{CPU: scalar.MustParse("64"), Memory: scalar.MustParse("512Gi"), Storage: scalar.MustParse("8Ti")},
			HostReserved: rackv1alpha1.MachineResources{CPU: scalar.MustParse("2"), Memory: scalar.MustParse("4Gi"), Storage: scalar.MustParse("64Gi")},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := client.InstanceV1alpha1().InstanceClasses().Create(ctx, &instancev1alpha1.InstanceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{
			CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi"), Storage: scalar.MustParse("64Gi"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range r.images {
		image, err := client.ImageV1alpha1().MacOSImages().Create(ctx, newImage(name), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
		if _, err := client.ImageV1alpha1().MacOSImages().UpdateStatus(ctx, image, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
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

// turnClock repeatedly moves the clock to just before the floor of a lease, or to hours before it,
// and sometimes back a little.
func (r *race) turnClock(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200*time.Millisecond + rand.N(200*time.Millisecond)):
		}
		if rand.IntN(40) == 0 {
			if err := r.clock.move(-rand.N(10 * time.Second)); err != nil {
				return err
			}
			continue
		}
		w := worker{race: r}
		for range 4 {
			v := w.target().view()
			if !held(v) && (!bound(v) || rand.IntN(20) > 0) {
				continue
			}
			by := v.lease.Status.EarliestReleaseAt.Sub(r.clock.Now()) - 20*time.Millisecond
			if rand.IntN(4) == 0 {
				by -= rand.N(20 * time.Hour)
			}
			if by > 0 {
				if err := r.clock.move(by); err != nil {
					return err
				}
				break
			}
		}
	}
}

// killAll repeatedly kills and restarts a server or a member of etcd.
func (r *race) killAll(ctx context.Context) error {
	if r.KillEvery == 0 {
		return nil
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.KillEvery/2 + rand.N(r.KillEvery)):
		}
		var err error
		r.kills.Add(1)
		if n%2 == 0 {
			i := rand.IntN(len(r.servers))
			r.servers[i].Kill()
			r.down[i].Store(true)
			err = r.revive(ctx, r.servers[i], r.servers[i].ready)
			r.down[i].Store(false)
		} else {
			p := pick(r.members)
			p.Kill()
			err = r.revive(ctx, p, p.healthy)
		}
		if err != nil {
			return err
		}
	}
}

// revive restarts a process, even if another program has its port for a while.
func (r *race) revive(ctx context.Context, p *child, check func(context.Context) error) error {
	time.Sleep(rand.N(500 * time.Millisecond))
	ctx = context.WithoutCancel(ctx)
	for try := 0; ; try++ {
		if err := p.Start(); err != nil {
			return err
		}
		err := p.WaitReady(ctx, check)
		if err == nil || try == 5 || !p.Crashed() {
			return err
		}
		p.Kill()
		time.Sleep(time.Second)
	}
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

func (r *race) etcd(members ...*child) (*clientv3.Client, error) {
	var endpoints []string
	for _, p := range members {
		endpoints = append(endpoints, p.role.Listen)
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// healthy reports whether a member of etcd answers for the cluster.
func (p *child) healthy(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.role.Listen}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = client.Get(ctx, "health")
	return err
}

// ready reports whether a server serves.
func (p *child) ready(ctx context.Context) error {
	client, err := newClient(p.role.Listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(asAdmin(ctx), 2*time.Second)
	defer cancel()
	_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
	return err
}
