package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster"
)

// spy collects the secrets of runners, and looks for them in the arguments of all processes.
func (w *world) spy() {
	for {
		select {
		case <-w.stopped:
			return
		case <-time.After(100 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var secrets []string
		err := w.get(ctx, "/secrets", &secrets)
		cancel()
		if err != nil {
			continue
		}
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			line, err := os.ReadFile(file)
			if err == nil {
				w.look(secrets, string(line), "arguments of a process")
			}
		}
	}
}

// look notes the places that contain a secret.
func (w *world) look(secrets []string, text, place string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, secret := range secrets {
		w.secrets[secret] = true
		if strings.Contains(text, secret) {
			w.leaks[place] = true
		}
	}
}

// lookEverywhere looks for the secrets of all runners in the objects of the tenant and in all logs.
func (w *world) lookEverywhere(ctx context.Context) error {
	w.mu.Lock()
	var secrets []string
	for secret := range w.secrets {
		secrets = append(secrets, secret)
	}
	w.mu.Unlock()
	if len(secrets) == 0 {
		return errors.New("no secret of a runner was seen")
	}
	objects, _, err := w.cluster.Kubectl(ctx, cluster.Admin, "get", "--namespace", tenant, "-o", "json",
		"macnodeleases.rack.macrack.io,macosinstances,pods,events,configmaps,secrets,leases.coordination.k8s.io,auditrecords")
	if err != nil {
		return err
	}
	w.look(secrets, objects, "objects")
	logs, err := filepath.Glob(filepath.Join(w.cluster.Dir(), "log", "*.log"))
	if err != nil {
		return err
	}
	for _, file := range logs {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		w.look(secrets, string(text), filepath.Base(file))
	}
	return nil
}

// report prints the result of the test.
func (w *world) report(ctx context.Context, queued int, measured []time.Duration, gitlab gitlabOutcome) error {
	if err := w.lookEverywhere(ctx); err != nil {
		return err
	}
	all, err := w.jobs(ctx)
	if err != nil {
		return err
	}
	all = all[len(all)-queued:]
	once, twice, lost, failed := 0, 0, 0, 0
	machines := map[string]int{}
	var waits []time.Duration
	for _, job := range all {
		switch {
		case job.Starts == 1:
			once++
		case job.Starts > 1:
			twice++
		default:
			lost++
		}
		if job.Result != "succeeded" {
			failed++
		}
		machines[job.RunnerName]++
		waits = append(waits, job.StartedAt.Sub(job.QueuedAt))
	}
	reused := 0
	for _, n := range machines {
		reused += n - 1
	}
	kills := 0
	for name, n := range w.killed {
		fmt.Printf("  killed %s: %d times\n", name, n)
		kills += n
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for place := range w.leaks {
		fmt.Printf("  a configuration of a runner is in: %s\n", place)
	}
	for _, err := range gitlab.defects {
		fmt.Printf("  %v\n", err)
	}
	fmt.Printf("runners: jobs=%d ran_once=%d twice=%d lost=%d failed_by_kills=%d reused=%d kills=%d leaks=%d gitlab_jobs=%d gitlab_defects=%d warm_p50=%s warm_p95=%s burst_p50=%s\n",
		len(all), once, twice, lost, failed, reused, kills, len(w.leaks), gitlab.jobs, len(gitlab.defects), quantile(measured, 0.5), quantile(measured, 0.95), quantile(waits, 0.5))
	if twice+lost+reused+len(w.leaks)+len(gitlab.defects) > 0 || once != queued {
		return errors.New("a job ran twice, was lost or shared its virtual machine, a configuration leaked, or a job of GitLab had a defect")
	}
	return nil
}

func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[int(q*float64(len(values)-1))].Round(time.Millisecond)
}
