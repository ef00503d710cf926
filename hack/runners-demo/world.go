package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/process"
)

// start starts the GitHub and macrack-runners. Both end with the demo.
func (d *demo) start(ctx context.Context) error {
	dir, bin := d.Cluster.Dir(), d.Cluster.Bin()
	ports := make([]int, 2)
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(ports[:i]...); err != nil {
			return err
		}
	}
	d.control, d.metrics = "http://"+process.Loopback(ports[0]), "http://"+process.Loopback(ports[1])+"/metrics"
	github := &process.Child{
		Name: "fake-github", Program: filepath.Join(bin, "runners", "fake-github"), Prints: "ready", LogFile: d.Cluster.LogFile("fake-github"),
		Args: []string{"--control=" + process.Loopback(ports[0]), "--links=" + filepath.Join(dir, "macs", "*", "state", "*", "*", "guest", "home", "link")},
	}
	if err := d.run(github); err != nil {
		return err
	}
	var settings struct{ URL, CA, Token, Install string }
	if err := d.get(ctx, "/settings", &settings); err != nil {
		return err
	}
	if _, _, err := d.Kubectl(ctx, "admin", "--namespace", tenant, "create", "secret", "generic", "github", "--from-literal=github_token="+settings.Token); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{"apiVersion": "runners.macrack.io/v1alpha1", "kind": "RunnersConfiguration", "sets": []any{map[string]any{
		"name":      "ios",
		"leases":    map[string]any{"className": "base", "max": 3, "growAfter": "1s"},
		"instances": map[string]any{"className": "small", "imageName": "macos-26-xcode-26"},
		"github":    map[string]any{"url": settings.URL, "caBundle": settings.CA, "secretName": "github", "startupScript": settings.Install},
	}}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "runners.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	// The demo uses an administrator, so that it needs no role. make runners-test uses the chart's.
	d.runners = &process.Child{
		Name: "macrack-runners", Program: filepath.Join(bin, "runners", "macrack-runners-demo"), LogFile: d.Cluster.LogFile("macrack-runners"),
		Args: []string{"--config=" + file, "--kubeconfig=" + d.Kubeconfig, "--namespace=" + tenant, "--bind-address=" + process.Loopback(ports[1])},
		Env:  []string{"MACRACK_RUNNERS_CLOCK=" + d.clock},
	}
	return d.run(d.runners)
}

// restart restarts macrack-runners.
func (d *demo) restart(ctx context.Context) {
	d.add(ctx)
	d.runners.Stop()
	err := d.runners.Start()
	d.eventually(ctx, "it leads again", func() bool { return err == nil && d.metric(ctx, "macrack_runners_leader") == 1 })
}

// add adds the counters of macrack-runners, which begin at zero after a restart.
func (d *demo) add(ctx context.Context) {
	d.paid += d.metric(ctx, "macrack_runners_paid_chassis_seconds_total")
	d.busy += d.metric(ctx, "macrack_runners_busy_chassis_seconds_total")
}

func (d *demo) run(child *process.Child) error {
	d.children = append(d.children, child)
	return child.Start()
}

func (d *demo) stop() {
	for _, child := range d.children {
		if child.Running() {
			child.Stop()
		}
	}
}

// job is a job of GitHub.
type job struct{ QueuedAt, StartedAt, EndedAt time.Time }

func (d *demo) queue(ctx context.Context, count int, duration time.Duration) {
	query := url.Values{"count": {strconv.Itoa(count)}, "duration": {duration.String()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.control+"/jobs?"+query.Encode(), nil)
	if err == nil {
		var response *http.Response
		if response, err = http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
		}
	}
	d.check(fmt.Sprintf("queued jobs: %d", count), err == nil)
}

func (d *demo) jobs(ctx context.Context) (jobs []job) {
	if err := d.get(ctx, "/jobs", &jobs); err != nil {
		fmt.Fprintln(d.out, err)
	}
	return jobs
}

// jobsLeft returns the number of jobs that have not ended.
func (d *demo) jobsLeft(ctx context.Context) int {
	left := 0
	for _, job := range d.jobs(ctx) {
		if job.EndedAt.IsZero() {
			left++
		}
	}
	return left
}

// jobsStarted returns the number of jobs that have started.
func (d *demo) jobsStarted(ctx context.Context) int {
	started := 0
	for _, job := range d.jobs(ctx) {
		if !job.StartedAt.IsZero() {
			started++
		}
	}
	return started
}

// lastWait returns the time from the queueing of the last job to its start.
func (d *demo) lastWait(ctx context.Context) time.Duration {
	jobs := d.jobs(ctx)
	if len(jobs) == 0 {
		return 0
	}
	last := jobs[len(jobs)-1]
	return last.StartedAt.Sub(last.QueuedAt).Round(time.Millisecond)
}

// count returns the number of objects in a phase; an empty phase counts all.
func (d *demo) count(ctx context.Context, resource, phase string) int {
	out, _, err := d.Kubectl(ctx, tenant, "get", resource, "-o", `jsonpath={range .items[*]}{.status.phase}{"\n"}{end}`)
	if err != nil {
		return -1
	}
	n := 0
	for _, line := range strings.Fields(out) {
		if phase == "" || line == phase {
			n++
		}
	}
	return n
}

// warm returns the number of virtual machines that wait for a job.
func (d *demo) warm(ctx context.Context) int {
	out, _, err := d.Kubectl(ctx, tenant, "get", "mi", "--selector", "!runners.macrack.io/job",
		"-o", `jsonpath={.items[*].status.conditions[?(@.type=="GuestReady")].status}`)
	if err != nil {
		return -1
	}
	return strings.Count(out, "True")
}

// metric returns the sum of a metric of macrack-runners.
func (d *demo) metric(ctx context.Context, name string) float64 {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.metrics, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	sum := 0.0
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if series, _, _ = strings.Cut(series, "{"); series != name {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}

func (d *demo) get(ctx context.Context, path string, value any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.control+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(value)
}
