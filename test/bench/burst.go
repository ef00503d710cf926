package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/stats"
)

const (
	// burstRate is the number of instances that are created in a second: at once.
	burstRate = 5000

	// Goals for instances that are created at once.
	burstMedianGoal  = 3 * time.Second
	burstLongestGoal = 8 * time.Second
	burstCreateGoal  = time.Second
)

// agentProcesses stands for the processes of all agents in tables.
const agentProcesses = "agents"

// A burst has what a round of starts at once has cost.
type burst struct {
	fleetRound
	requests float64            // that kube-apiserver has answered, per instance
	cpu      map[string]float64 // ms of each process per instance
}

// measureBurst measures a fleet whose instances are all created at once.
func (b *bench) measureBurst(ctx context.Context) error {
	return b.onFleet(ctx, func(f *fleet) error {
		var bursts []burst
		for range f.rounds {
			r, err := f.burst(ctx)
			if err != nil {
				return err
			}
			bursts = append(bursts, r)
			if _, err := f.removeVMs(ctx); err != nil {
				return err
			}
		}
		f.reportBursts(bursts)
		return nil
	})
}

func (f *fleet) burst(ctx context.Context) (r burst, err error) {
	answered, err := requests(ctx, f.kube)
	if err != nil {
		return r, err
	}
	used, err := f.processTimes()
	if err != nil {
		return r, err
	}
	if err := f.startVMs(ctx, burstRate); err != nil {
		return r, err
	}
	r = burst{fleetRound: f.round(), cpu: map[string]float64{}}
	instances := float64(len(r.whole))
	after, err := f.processTimes()
	if err != nil {
		return r, err
	}
	for name, cpu := range after {
		r.cpu[name] = ms(cpu-used[name]) / instances
	}
	answeredAfter, err := requests(ctx, f.kube)
	rejected(answered, answeredAfter, len(r.whole))
	for request, n := range answeredAfter {
		r.requests += (n - answered[request]) / instances
	}
	fmt.Fprintf(os.Stderr, "  running after %s p50, %s p99; %.1f requests and %.0f ms of CPU time per instance\n",
		stats.Quantile(r.whole, 0.5), stats.Quantile(r.whole, 0.99), r.requests, total(r.cpu))
	return r, err
}

// processTimes returns the CPU time of each process so far, and of all agents together.
func (f *fleet) processTimes() (map[string]time.Duration, error) {
	pids := map[string][]int{}
	for _, name := range scaleProcesses {
		pids[name] = []int{f.cluster.PID(name)}
	}
	for _, p := range f.macs {
		pids[agentProcesses] = append(pids[agentProcesses], p.PID())
	}
	times := map[string]time.Duration{}
	for name, pids := range pids {
		for _, pid := range pids {
			t, err := processTime(pid)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			times[name] += t
		}
	}
	return times, nil
}

func total(values map[string]float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}

// reportBursts adds the results: the times, and what each instance costs.
func (f *fleet) reportBursts(bursts []burst) {
	each := func(of func(burst) float64) (values []float64) {
		for _, r := range bursts {
			values = append(values, of(r))
		}
		return values
	}
	quantile := func(q float64) []float64 {
		return each(func(r burst) float64 { return stats.Quantile(r.whole, q).Seconds() })
	}
	name := fmt.Sprintf("%d VMs on %d Macs, created at once, until Running", f.fleet*rules.MaxVMsPerMac, f.fleet)
	f.alone(name+", p50", "s", quantile(0.5), burstMedianGoal.Seconds())
	f.alone(name+", p99", "s", quantile(0.99), burstLongestGoal.Seconds())
	f.alone("the creates, p99", "s", each(func(r burst) float64 { return stats.Quantile(r.steps[0], 0.99).Seconds() }), burstCreateGoal.Seconds())
	f.alone("requests to kube-apiserver per instance", "", each(func(r burst) float64 { return r.requests }), 0)
	f.alone("CPU time per instance", "ms", each(func(r burst) float64 { return total(r.cpu) }), 0)
	for _, process := range append(scaleProcesses, agentProcesses) {
		f.alone(strings.TrimSuffix(process, "-1")+", CPU time per instance", "ms", each(func(r burst) float64 { return r.cpu[process] }), 0)
	}
}
