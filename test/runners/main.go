// Runners runs CI jobs of a GitHub for tests on simulated Macs, kills the components meanwhile, and
// checks that each job has run once, on a virtual machine that had run nothing before.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
)

// patience is the time in which all jobs must end.
const patience = 25 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.IntVar(&o.jobs, "jobs", 200, "the number of jobs")
	flag.IntVar(&o.burst, "burst", 20, "the number of jobs that arrive at once")
	flag.IntVar(&o.macs, "macs", 4, "the number of simulated Macs")
	flag.IntVar(&o.warm, "warm", 20, "the number of jobs to measure with a warm virtual machine")
	flag.IntVar(&o.gitlabJobs, "gitlab-jobs", 6, "the number of jobs of GitLab that run meanwhile, on another Mac")
	flag.DurationVar(&o.kills, "kills", 6*time.Second, "the time between two kills; 0 kills nothing")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are the extent of the test.
type options struct {
	jobs, burst, macs, warm, gitlabJobs int
	kills                               time.Duration
}

func run(ctx context.Context, o options) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 2, Controllers: 2, Macs: o.macs + 1, Example: true, Keep: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	w, err := newWorld(ctx, c, o.macs)
	if err != nil {
		return err
	}
	defer w.stop()
	measured, err := w.measure(ctx, o.warm)
	if err != nil {
		return err
	}
	fromGitLab := make(chan gitlabOutcome, 1)
	go func() { fromGitLab <- w.gitlab(ctx, o.gitlabJobs) }()
	if err := w.burst(ctx, o.jobs, o.burst, o.kills); err != nil {
		return err
	}
	return w.report(ctx, o.jobs, measured, <-fromGitLab)
}

// measure queues single jobs, each when a virtual machine is warm, and returns their waits.
func (w *world) measure(ctx context.Context, jobs int) ([]time.Duration, error) {
	var waits []time.Duration
	for n := range jobs + 1 {
		if n > 0 {
			if err := w.until(ctx, "a warm virtual machine", func() (bool, error) { return w.warm(ctx) }); err != nil {
				return nil, err
			}
		}
		if err := w.queue(ctx, 1, 100*time.Millisecond); err != nil {
			return nil, err
		}
		if err := w.until(ctx, "the end of the job", func() (bool, error) { return w.ended(ctx) }); err != nil {
			return nil, err
		}
		all, err := w.jobs(ctx)
		if err != nil {
			return nil, err
		}
		if last := all[len(all)-1]; n > 0 { // the first one waits for a Mac
			waits = append(waits, last.StartedAt.Sub(last.QueuedAt))
		}
	}
	return waits, nil
}

// burst queues jobs, and kills components until all of them have ended.
func (w *world) burst(ctx context.Context, jobs, burst int, kills time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the jobs have not ended within %s", patience))
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		w.killAll(killing, kills)
	}()
	defer func() { stop(); <-killed }()
	for queued := 0; queued < jobs; queued += burst {
		n := min(burst, jobs-queued)
		if err := w.queue(ctx, n, time.Duration(500+rand.IntN(1500))*time.Millisecond); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d of %d jobs are queued\n", queued+n, jobs)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(3+rand.IntN(6)) * time.Second):
		}
	}
	return w.until(ctx, "the end of all jobs", func() (bool, error) { return w.ended(ctx) })
}

// killAll kills a component at random in each interval.
func (w *world) killAll(ctx context.Context, interval time.Duration) {
	if interval == 0 {
		return
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
		kill := w.kills[n%len(w.kills)]
		fmt.Fprintf(os.Stderr, "kill: %s\n", kill.name)
		if err := kill.do(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "kill of %s: %v\n", kill.name, err)
		}
		w.killed[kill.name]++
	}
}
