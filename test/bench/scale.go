package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/process"
	"macrack.io/macrack/test/stats"
)

const (
	changesPerSecond = 10
	// Goals for all of our processes, idle, with at most so many Macs.
	scaleGoalMacs   = 5000
	scaleCPUGoal    = 0.5  // cores
	scaleMemoryGoal = 1000 // MB
)

// scaleProcesses are the measured processes; the first ours are MacRack's.
var scaleProcesses = []string{
	"macrack-apiserver-1", "macrack-controllers-1", "macrack-etcd-1",
	"kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler",
}

const ours = 3

// usage is the use of a process, or of several, in each round.
type usage struct{ cpu, memory []float64 } // cores, MB

// scaled are the results with a fleet of some size, by process; all of ours are the last one.
type scaled struct {
	macs       int
	idle, busy []usage
}

// scale is the state of measureScale.
type scale struct {
	*bench
	cluster *cluster.Cluster
	macrack *versioned.Clientset
	kube    *kubernetes.Clientset
	agents  []*process.Child
	macs    int // that exist
}

// measureScale measures the processes of the control plane with fleets of growing size. Each Mac is
// leased and runs two instances.
func (b *bench) measureScale(ctx context.Context) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 1, Controllers: 1, Example: true, Sync: true, Keep: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	clients, err := c.Clients(cluster.Admin)
	if err != nil {
		return err
	}
	s := &scale{bench: b, cluster: c, macrack: clients.MacRack, kube: clients.Kube}
	defer func() {
		for _, p := range s.agents {
			p.Stop()
		}
	}()
	var sizes []scaled
	for _, macs := range b.scaleMacs {
		size, err := s.measureSize(ctx, macs)
		if err != nil && (len(sizes) == 0 || ctx.Err() != nil) {
			return err
		}
		if err != nil { // the smaller fleets are conclusions nevertheless
			fmt.Fprintf(os.Stderr, "bench: scale: %d Macs: %v\n", macs, err)
			defer func() { b.note += fmt.Sprintf("\n\nA fleet of %d Macs did not settle on this machine.", macs) }()
			break
		}
		sizes = append(sizes, size)
	}
	b.reportScale(sizes)
	return b.chartScale(sizes)
}

// measureSize measures a fleet of a size, idle and with changes.
func (s *scale) measureSize(ctx context.Context, macs int) (r scaled, err error) {
	if err := s.grow(ctx, macs); err != nil {
		return r, err
	}
	start := time.Now()
	r.macs = macs
	if r.idle, err = s.sample(ctx); err != nil {
		return r, err
	}
	changing, stop := context.WithCancel(ctx)
	changed := make(chan error, 1)
	go func() { changed <- s.change(changing) }()
	r.busy, err = s.sample(ctx)
	stop()
	if err = errors.Join(err, <-changed); err != nil {
		return r, err
	}
	all := len(scaleProcesses)
	fmt.Fprintf(os.Stderr, "  %d Macs: %.2f cores and %.0f MB idle, %.2f cores and %.0f MB with changes\n", macs,
		stats.Median(r.idle[all].cpu), stats.Median(r.idle[all].memory), stats.Median(r.busy[all].cpu), stats.Median(r.busy[all].memory))
	return r, s.checkOnline(ctx, start)
}

// grow adds Macs, and waits until the control plane has dealt with them.
func (s *scale) grow(ctx context.Context, macs int) error {
	fmt.Fprintf(os.Stderr, "  %d Macs\n", macs)
	from := s.macs
	if err := s.seed(ctx, from, macs); err != nil {
		return err
	}
	agents, err := s.startAgents(ctx, from, macs)
	if err != nil {
		return err
	}
	s.agents, s.macs = append(s.agents, agents), macs
	if err := await.Success(ctx, 15*time.Minute, 2*time.Second, func() error { return s.checkOnline(ctx, time.Now()) }); err != nil {
		return err
	}
	return s.settle(ctx)
}

// checkOnline checks that all Macs are online, and have been since a time.
func (s *scale) checkOnline(ctx context.Context, since time.Time) error {
	list, err := s.macrack.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	online := 0
	for i := range list.Items {
		ready := meta.FindStatusCondition(list.Items[i].Status.Conditions, rackv1alpha1.MacNodeReady)
		if ready != nil && ready.Status == metav1.ConditionTrue && ready.LastTransitionTime.Time.Before(since) {
			online++
		}
	}
	if online < s.macs {
		return fmt.Errorf("%d of %d Macs are online since %s", online, s.macs, since.Format(time.TimeOnly))
	}
	return nil
}

// settle waits until the controllers have no work left: each lease has its budget, and the etcd
// of the API has no new writes but those of the servers themselves.
func (s *scale) settle(ctx context.Context) error {
	if err := await.Success(ctx, 15*time.Minute, 5*time.Second, func() error {
		budgets, err := s.kube.PolicyV1().PodDisruptionBudgets(fleetTenant).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil && len(budgets.Items) < s.macs {
			err = fmt.Errorf("%d of %d leases have a budget", len(budgets.Items), s.macs)
		}
		return err
	}); err != nil {
		return err
	}
	// All agents have learned the interval of the fleet, and garbage has been collected.
	config, err := s.macrack.ConfigV1alpha1().RackConfigs().Get(ctx, configv1alpha1.RackConfigName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	interval := config.Heartbeats().AgentInterval(config.Status.HeartbeatInterval.Value())
	fmt.Fprintf(os.Stderr, "  heartbeats every %s\n", interval)
	return await.Sleep(ctx, s.settling)
}

// sample measures the processes in each round.
func (s *scale) sample(ctx context.Context) ([]usage, error) {
	used := make([]usage, len(scaleProcesses)+1)
	for range s.rounds {
		before := make([]time.Duration, len(scaleProcesses))
		var err error
		for i, name := range scaleProcesses {
			if before[i], err = processTime(s.cluster.PID(name)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		start := time.Now()
		if err := await.Sleep(ctx, s.window); err != nil {
			return nil, err
		}
		allCPU, allMemory := 0.0, 0.0
		for i, name := range scaleProcesses {
			after, err := processTime(s.cluster.PID(name))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			cpu := (after - before[i]).Seconds() / time.Since(start).Seconds()
			memory, err := rss(ctx, s.cluster.PID(name))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			used[i].cpu, used[i].memory = append(used[i].cpu, cpu), append(used[i].memory, memory)
			if i < ours {
				allCPU, allMemory = allCPU+cpu, allMemory+memory
			}
		}
		all := &used[len(scaleProcesses)]
		all.cpu, all.memory = append(all.cpu, allCPU), append(all.memory, allMemory)
	}
	return used, nil
}

// change changes instances until ctx ends: in turn a label, as a tenant does, and the status, as an
// agent does.
func (s *scale) change(ctx context.Context) error {
	instances := s.macrack.InstanceV1alpha1().MacOSInstances(fleetTenant)
	ticker := time.NewTicker(time.Second / changesPerSecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		name := fleetInstance(rand.IntN(s.macs), rand.IntN(rules.MaxVMsPerMac))
		patch, subresources := fmt.Sprintf(`{"metadata":{"labels":{"change":"%d"}}}`, n), []string(nil)
		if n%2 == 1 {
			patch, subresources = fmt.Sprintf(`{"status":{"message":"change %d"}}`, n), []string{"status"}
		}
		_, err := instances.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("changing instance %s: %w", name, err)
		}
	}
}

// reportScale adds the results: all of ours for each size, and each process for the largest.
func (b *bench) reportScale(sizes []scaled) {
	for i, s := range sizes {
		cpuGoal, memoryGoal := 0.0, 0.0
		if i == len(sizes)-1 && s.macs <= scaleGoalMacs {
			cpuGoal, memoryGoal = scaleCPUGoal, scaleMemoryGoal
		}
		all := len(scaleProcesses)
		name := fmt.Sprintf("all of ours, %d Macs and %d instances", s.macs, rules.MaxVMsPerMac*s.macs)
		b.alone(name+", CPU, idle", "cores", s.idle[all].cpu, cpuGoal)
		b.alone(fmt.Sprintf("%s, CPU, %d changes a second", name, changesPerSecond), "cores", s.busy[all].cpu, 0)
		b.alone(name+", memory, idle", "MB", s.idle[all].memory, memoryGoal)
		b.alone(fmt.Sprintf("%s, memory, %d changes a second", name, changesPerSecond), "MB", s.busy[all].memory, 0)
	}
	largest := sizes[len(sizes)-1]
	for i, process := range scaleProcesses {
		name := fmt.Sprintf("%s, %d Macs", strings.TrimSuffix(process, "-1"), largest.macs)
		b.alone(name+", CPU, idle", "cores", largest.idle[i].cpu, 0)
		b.alone(fmt.Sprintf("%s, CPU, %d changes a second", name, changesPerSecond), "cores", largest.busy[i].cpu, 0)
		b.alone(name+", memory, idle", "MB", largest.idle[i].memory, 0)
		b.alone(fmt.Sprintf("%s, memory, %d changes a second", name, changesPerSecond), "MB", largest.busy[i].memory, 0)
	}
}

// chartScale draws the curves, beside the document if there is one.
func (b *bench) chartScale(sizes []scaled) error {
	path := filepath.Join(b.root, ".dev", "scale.svg")
	if b.document != "" {
		path = filepath.Join(filepath.Dir(b.document), "scale.svg")
	}
	b.note = fmt.Sprintf("![CPU and memory by the number of Macs](%s)", filepath.Base(path))
	curves := func(of func(scaled) []usage, value func(usage) float64) (lines []line) {
		for i, name := range append(scaleProcesses[:ours:ours], "all of ours") {
			if i == ours {
				i = len(scaleProcesses)
			}
			l := line{name: strings.TrimSuffix(name, "-1")}
			for _, s := range sizes {
				l.points = append(l.points, point{float64(s.macs), value(of(s)[i])})
			}
			lines = append(lines, l)
		}
		return lines
	}
	idle, busy := func(s scaled) []usage { return s.idle }, func(s scaled) []usage { return s.busy }
	cpu, memory := func(u usage) float64 { return stats.Median(u.cpu) }, func(u usage) float64 { return stats.Median(u.memory) }
	return os.WriteFile(path, []byte(drawCharts("Macs", []chart{
		{"CPU in cores, idle", curves(idle, cpu)},
		{fmt.Sprintf("CPU in cores, %d changes a second", changesPerSecond), curves(busy, cpu)},
		{"Memory in MB, idle", curves(idle, memory)},
	})), 0o644)
}

func fleetInstance(mac, n int) string { return fmt.Sprintf("%s-vm-%d", fleetMac(mac), n) }
