package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/testbed"
)

const (
	// bindGoal is the goal for the time until all leases of a burst are bound.
	bindGoal = 10 * time.Second
	// linearGoal limits the time of a burst to that of half as many leases: 2 would be linear.
	linearGoal = 2.4
	// releaseTimeout limits each step of a burst.
	releaseTimeout = 5 * time.Minute
)

// A leaseBurst measures leases that are requested at once, deleted at once, and released at once:
// when their floor passes on the adjustable clock of the testbed.
type leaseBurst struct {
	testbed *testbed.Testbed
	macrack *versioned.Clientset
	kube    *kubernetes.Clientset
	fleet   int // Macs

	mu     sync.Mutex
	phases map[string]rackv1alpha1.MacNodeLeasePhase
	macs   map[string]rackv1alpha1.MacNodePhase
}

// leaseBurstRound has the durations of a burst from each request until the last lease or Mac
// is as requested.
type leaseBurstRound struct {
	bound, held, released, available time.Duration
	// rejected is the number of requests per lease that were answered with 409 or 429.
	rejected float64
}

func (b *bench) measureReleases(ctx context.Context) (err error) {
	tb, err := testbed.Start(ctx, testbed.Options{Macs: b.fleet})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.Stop()) }()
	l := &leaseBurst{testbed: tb, fleet: b.fleet, phases: map[string]rackv1alpha1.MacNodeLeasePhase{}, macs: map[string]rackv1alpha1.MacNodePhase{}}
	if l.macrack, err = tb.Clientset(cluster.Admin); err != nil {
		return err
	}
	if l.kube, err = tb.Kubernetes(cluster.Admin); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.watch(watching); err != nil {
		return err
	}
	if err := l.awaitMacs(ctx); err != nil {
		return err
	}
	half, whole := b.fleet/2, b.fleet
	rounds := map[int][]leaseBurstRound{}
	for n := range b.rounds {
		for _, size := range []int{half, whole} {
			r, err := l.round(ctx, n, size)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "  %d leases: bound after %s, held after %s, released after %s, Macs available after %s, %.2f requests repeated per lease\n",
				size, r.bound.Round(time.Millisecond), r.held.Round(time.Millisecond), r.released.Round(time.Millisecond), r.available.Round(time.Millisecond), r.rejected)
			rounds[size] = append(rounds[size], r)
		}
	}
	b.reportReleases(half, rounds[half], whole, rounds[whole])
	return nil
}

// watch follows the phases of all leases and Macs.
func (l *leaseBurst) watch(ctx context.Context) error {
	factory := externalversions.NewSharedInformerFactory(l.macrack, 0)
	note := func(obj any) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch o := obj.(type) {
		case *rackv1alpha1.MacNodeLease:
			l.phases[o.Name] = o.Status.Phase
		case *rackv1alpha1.MacNode:
			l.macs[o.Name] = o.Status.Phase
		}
	}
	forget := func(obj any) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if o, ok := obj.(*rackv1alpha1.MacNodeLease); ok {
			delete(l.phases, o.Name)
		}
	}
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{
		factory.Rack().V1alpha1().MacNodeLeases().Informer(), factory.Rack().V1alpha1().MacNodes().Informer(),
	} {
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }, DeleteFunc: forget})
		if err != nil {
			return err
		}
		synced = append(synced, handler.HasSynced)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

// awaitMacs waits until all Macs are available.
func (l *leaseBurst) awaitMacs(ctx context.Context) error {
	return await.Success(ctx, releaseTimeout, 20*time.Millisecond, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		available := 0
		for _, phase := range l.macs {
			if phase == rackv1alpha1.MacNodeAvailable {
				available++
			}
		}
		if available < l.fleet {
			return fmt.Errorf("%d of %d Macs are available", available, l.fleet)
		}
		return nil
	})
}

// awaitLeases waits until there are so many leases, all of the phase.
func (l *leaseBurst) awaitLeases(ctx context.Context, leases int, phase rackv1alpha1.MacNodeLeasePhase) error {
	return await.Success(ctx, releaseTimeout, 20*time.Millisecond, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		matching := 0
		for _, p := range l.phases {
			if p == phase {
				matching++
			}
		}
		if len(l.phases) != leases || matching != leases {
			return fmt.Errorf("%d leases exist, and %d are %s; expected %d", len(l.phases), matching, phase, leases)
		}
		return nil
	})
}

func (l *leaseBurst) round(ctx context.Context, n, size int) (r leaseBurstRound, err error) {
	before, err := requests(ctx, l.kube)
	if err != nil {
		return r, err
	}
	leases := l.macrack.RackV1alpha1().MacNodeLeases(fleetTenant)
	var creating sync.WaitGroup
	failed := make(chan error, size)
	began := time.Now()
	for i := range size {
		creating.Go(func() {
			_, err := leases.Create(ctx, &rackv1alpha1.MacNodeLease{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("burst-%d-%d-%d", n, size, i)},
				Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
			}, metav1.CreateOptions{})
			failed <- err
		})
	}
	creating.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return r, err
		}
	}
	if err := l.awaitLeases(ctx, size, rackv1alpha1.MacNodeLeaseBound); err != nil {
		return r, err
	}
	r.bound = time.Since(began)

	began = time.Now()
	if err := leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return r, err
	}
	if err := l.awaitLeases(ctx, size, rackv1alpha1.MacNodeLeaseHeld); err != nil {
		return r, err
	}
	r.held = time.Since(began)

	l.testbed.Advance(rules.MinimumLeaseDuration)
	began = time.Now()
	if err := l.awaitLeases(ctx, 0, ""); err != nil {
		return r, err
	}
	r.released = time.Since(began)
	if err := l.awaitMacs(ctx); err != nil {
		return r, err
	}
	r.available = time.Since(began)
	after, err := requests(ctx, l.kube)
	r.rejected = rejected(before, after, size)
	return r, err
}

// reportReleases adds the results, and compares each burst with that of half as many leases.
func (b *bench) reportReleases(half int, halves []leaseBurstRound, whole int, wholes []leaseBurstRound) {
	steps := []struct {
		name string
		goal time.Duration
		of   func(leaseBurstRound) time.Duration
	}{
		{"%d leases requested at once, until all are Bound", bindGoal, func(r leaseBurstRound) time.Duration { return r.bound }},
		{"%d leases deleted at once, until all are Held", 0, func(r leaseBurstRound) time.Duration { return r.held }},
		{"%d leases whose floor passes at once, until all are gone", 0, func(r leaseBurstRound) time.Duration { return r.released }},
		{"%d leases whose floor passes at once, until their Macs are Available", 0, func(r leaseBurstRound) time.Duration { return r.available }},
	}
	for _, step := range steps {
		var durations, ratios []float64
		for i, r := range wholes {
			durations = append(durations, step.of(r).Seconds())
			ratios = append(ratios, float64(step.of(r))/float64(step.of(halves[i])))
		}
		b.alone(fmt.Sprintf(step.name, whole), "s", durations, step.goal.Seconds())
		b.alone(fmt.Sprintf("the same, to %d", half), "", ratios, linearGoal)
	}
	var rejected []float64
	for _, r := range wholes {
		rejected = append(rejected, r.rejected)
	}
	b.alone("refused and repeated requests per lease", "", rejected, rejectedGoal)
}
