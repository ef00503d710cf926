package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"macrack.io/macrack/test/cluster/await"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/process"
	"macrack.io/macrack/test/stats"
)

const (
	macsPerProcess = 125
	// startGoal is the goal for the median from an instance's creation to Running.
	startGoal = time.Second
)

// A start has the times at which an instance reached each step of its start, as seen by a client.
type start struct {
	asked, created, scheduled, bound, identified, running time.Time
}

// measureFleet measures the time from the creation of an instance until it runs. Every Mac of the
// fleet gets two instances, at a steady rate. The whole control plane and the fleet share this
// machine.
func (b *bench) measureFleet(ctx context.Context) error {
	return b.onFleet(ctx, func(f *fleet) error {
		var rounds []fleetRound
		var removals []removal
		for range f.rounds {
			if err := f.startVMs(ctx, f.rate); err != nil {
				return err
			}
			rounds = append(rounds, f.round())
			removal, err := f.removeVMs(ctx)
			if err != nil {
				return err
			}
			removals = append(removals, removal)
		}
		f.report(rounds)
		f.reportRemovals(removals)
		return nil
	})
}

// onFleet measures a fleet of leased Macs.
func (b *bench) onFleet(ctx context.Context, measure func(*fleet) error) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 1, Controllers: 1, Example: true, Keep: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	clients, err := c.Clients(cluster.Admin)
	if err != nil {
		return err
	}
	f := &fleet{bench: b, cluster: c, starts: map[string]*start{}, macrack: clients.MacRack, kube: clients.Kube}
	defer f.stopMacs()
	if err := f.startMacs(ctx); err != nil {
		return err
	}
	if err := f.bindLeases(ctx); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.watch(watching); err != nil {
		return err
	}
	return measure(f)
}

type fleet struct {
	*bench
	cluster *cluster.Cluster
	macrack *versioned.Clientset
	kube    *kubernetes.Clientset
	// macs are processes of many Macs each, and state is the folder with the Macs' states.
	macs  []*process.Child
	state string

	mu     sync.Mutex
	starts map[string]*start
	gone   []time.Time // of the instances that are being removed
}

var fleetTenant = cluster.Tenants[0]

// bindLeases leases every Mac, and waits until all are bound.
func (f *fleet) bindLeases(ctx context.Context) error {
	leases := f.macrack.RackV1alpha1().MacNodeLeases(fleetTenant)
	for n := range f.fleet {
		if _, err := leases.Create(ctx, &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{Name: fleetMac(n)}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", SerialNumber: fleetSerial(n)},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(15 * time.Minute)
	for {
		list, err := leases.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		bound := 0
		for _, lease := range list.Items {
			if lease.Status.Phase == rackv1alpha1.MacNodeLeaseBound {
				bound++
			}
		}
		fmt.Fprintf(os.Stderr, "  %d of %d Macs are leased\n", bound, f.fleet)
		if bound == f.fleet {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d leases are bound", bound, f.fleet)
		}
		if err := await.Sleep(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	return f.awaitNodes(ctx)
}

// awaitNodes waits until the Nodes admit the tenant's pods: kube-controller-manager takes a minute
// to mark so many new Nodes ready.
func (f *fleet) awaitNodes(ctx context.Context) error {
	deadline := time.Now().Add(5 * time.Minute)
	for {
		nodes, err := f.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		admitting := 0
		for _, node := range nodes.Items {
			if len(node.Spec.Taints) == 1 && node.Spec.Taints[0].Key == rules.TaintTenant {
				admitting++
			}
		}
		fmt.Fprintf(os.Stderr, "  %d of %d Nodes are ready and admit the tenant\n", admitting, f.fleet)
		if admitting == f.fleet {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d Nodes are ready and admit the tenant", admitting, f.fleet)
		}
		if err := await.Sleep(ctx, 5*time.Second); err != nil {
			return err
		}
	}
}

// watch records when an instance and its pod reach each step.
func (f *fleet) watch(ctx context.Context) error {
	note := func(name string, when func(s *start) *time.Time) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s := f.starts[name]; s != nil {
			if at := when(s); at.IsZero() {
				*at = time.Now()
			}
		}
	}
	on := func(see func(any)) cache.ResourceEventHandler {
		return cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}
	}
	instances := externalversions.NewSharedInformerFactoryWithOptions(f.macrack, 0, externalversions.WithNamespace(fleetTenant))
	informer := instances.Instance().V1alpha1().MacOSInstances().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.gone = append(f.gone, time.Now())
	}}); err != nil {
		return err
	}
	onInstance, err := informer.AddEventHandler(on(func(obj any) {
		i, ok := obj.(*instancev1alpha1.MacOSInstance)
		if !ok {
			return
		}
		if i.Status.PodName != "" {
			note(i.Name, func(s *start) *time.Time { return &s.scheduled })
		}
		if i.Status.MachineID != "" {
			note(i.Name, func(s *start) *time.Time { return &s.identified })
		}
		if i.Status.Phase == instancev1alpha1.MacOSInstanceRunning {
			note(i.Name, func(s *start) *time.Time { return &s.running })
		}
	}))
	if err != nil {
		return err
	}
	pods := informers.NewSharedInformerFactoryWithOptions(f.kube, 0, informers.WithNamespace(fleetTenant))
	onPod, err := pods.Core().V1().Pods().Informer().AddEventHandler(on(func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			note(pod.Labels[rules.LabelInstance], func(s *start) *time.Time { return &s.bound })
		}
	}))
	if err != nil {
		return err
	}
	instances.Start(ctx.Done())
	pods.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), onInstance.HasSynced, onPod.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// startVMs creates the instances at a rate per second, and waits until all run.
func (f *fleet) startVMs(ctx context.Context, rate float64) error {
	ticker := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticker.Stop()
	total := f.fleet * rules.MaxVMsPerMac
	var asking sync.WaitGroup
	failed := make(chan error, total)
	for n := range total {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		mac := fleetMac(n % f.fleet)
		name := fmt.Sprintf("%s-vm-%d", mac, n/f.fleet)
		s := &start{asked: time.Now()}
		f.mu.Lock()
		f.starts[name] = s
		f.mu.Unlock()
		asking.Go(func() {
			_, err := f.macrack.InstanceV1alpha1().MacOSInstances(fleetTenant).Create(ctx, &instancev1alpha1.MacOSInstance{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: mac, ClassName: "small", ImageName: "macos-26-xcode-26"},
			}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				failed <- fmt.Errorf("create %s: %w", name, err)
			}
			f.mu.Lock()
			s.created = time.Now()
			f.mu.Unlock()
		})
	}
	asking.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	left := func() (names []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, s := range f.starts {
			if s.running.IsZero() {
				names = append(names, name)
			}
		}
		return names
	}
	deadline := time.Now().Add(10 * time.Minute)
	for len(left()) > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d instances do not run, such as %s", len(left()), total, strings.Join(left()[:1], ""))
		}
		if err := await.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// fleetRound has the durations of all starts of a round, as a whole and by step.
type fleetRound struct {
	whole []time.Duration
	steps [len(fleetSteps)][]time.Duration
}

var fleetSteps = [...]struct {
	name     string
	from, to func(*start) time.Time
}{
	{"create", func(s *start) time.Time { return s.asked }, func(s *start) time.Time { return s.created }},
	{"controllers: placeholder pod", func(s *start) time.Time { return s.created }, func(s *start) time.Time { return s.scheduled }},
	{"kube-scheduler: pod bound", func(s *start) time.Time { return s.scheduled }, func(s *start) time.Time { return s.bound }},
	{"agent: identity accepted", func(s *start) time.Time { return s.bound }, func(s *start) time.Time { return s.identified }},
	{"agent: slot, runner, Running", func(s *start) time.Time { return s.identified }, func(s *start) time.Time { return s.running }},
}

func (f *fleet) round() (r fleetRound) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.starts {
		r.whole = append(r.whole, s.running.Sub(s.asked))
		for i, step := range fleetSteps {
			// The difference is negative if the events arrived out of order.
			r.steps[i] = append(r.steps[i], max(0, step.to(s).Sub(step.from(s))))
		}
	}
	return r
}

// report adds the results: the total, and the time of each step.
func (f *fleet) report(rounds []fleetRound) {
	each := func(of func(fleetRound) []time.Duration, q float64) (values []float64) {
		for _, r := range rounds {
			values = append(values, ms(stats.Quantile(of(r), q)))
		}
		return values
	}
	whole := func(r fleetRound) []time.Duration { return r.whole }
	name := fmt.Sprintf("%d VMs on %d Macs, %g per second, created to Running", f.fleet*rules.MaxVMsPerMac, f.fleet, f.rate)
	f.alone(name+", p50", "ms", each(whole, 0.5), ms(startGoal))
	f.alone(name+", p99", "ms", each(whole, 0.99), 0)
	for _, q := range []float64{0.5, 0.99} {
		for i, step := range fleetSteps {
			f.alone(fmt.Sprintf("%s, p%.0f", step.name, 100*q), "ms", each(func(r fleetRound) []time.Duration { return r.steps[i] }, q), 0)
		}
	}
}
