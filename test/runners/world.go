package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/process"
)

const (
	tenant   = "acme"
	adapters = 2
	// busyPatience is the time for which the kill of a runner waits for one that runs a job.
	busyPatience = 15 * time.Second
)

// world is the cluster with macrack-runners and a GitHub.
type world struct {
	cluster *cluster.Cluster
	control string // URL of the control of GitHub
	links   string // pattern of the link folders of stand-ins
	// kubeconfig is that of the service account of macrack-runners.
	kubeconfig string

	children []*process.Child
	kills    []kill
	killed   map[string]int

	mu      sync.Mutex
	secrets map[string]bool // of all runners
	leaks   map[string]bool
	stopped chan struct{}
	spying  sync.WaitGroup
}

type kill struct {
	name string
	do   func(context.Context) error
}

// job is a job of GitHub.
type job struct {
	Name                         string
	QueuedAt, StartedAt, EndedAt time.Time
	Result                       string
	Starts                       int
	RunnerName                   string
}

func newWorld(ctx context.Context, c *cluster.Cluster, macs int) (*world, error) {
	w := &world{
		cluster: c, links: filepath.Join(c.Dir(), "macs", "*", "state", "*", "*", "guest", "home", "link"),
		killed: map[string]int{}, secrets: map[string]bool{}, leaks: map[string]bool{}, stopped: make(chan struct{}),
	}
	if err := w.build(ctx); err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	w.control = "http://" + process.Loopback(port)
	err = w.start(&process.Child{
		Name: "fake-github", Program: w.program("fake-github"), Prints: "ready", LogFile: c.LogFile("fake-github"),
		Args: []string{"--control=" + process.Loopback(port), "--links=" + w.links},
	})
	if err != nil {
		return nil, err
	}
	if w.kubeconfig, err = w.install(ctx, macs); err != nil {
		w.stop()
		return nil, err
	}
	for n := 1; n <= adapters; n++ {
		name := fmt.Sprintf("macrack-runners-%d", n)
		child := &process.Child{
			Name: name, Program: w.program("macrack-runners"), LogFile: c.LogFile(name),
			Args: []string{"--config=" + w.configFile(), "--kubeconfig=" + w.kubeconfig, "--namespace=" + tenant, "--bind-address="},
		}
		if err := w.start(child); err != nil {
			w.stop()
			return nil, err
		}
		w.kills = append(w.kills, kill{"macrack-runners", func(context.Context) error {
			child.Kill()
			return child.Start()
		}})
	}
	w.kills = append(w.kills,
		kill{"runner process", w.killRunner},
		kill{"macrack-apiserver", func(ctx context.Context) error { return w.crash(ctx, "macrack-apiserver", 2) }},
		kill{"macrack-agent", func(ctx context.Context) error { return w.crash(ctx, "mac", macs+1) }},
		kill{"session", func(ctx context.Context) error { return w.post(ctx, "/faults/drop-session", nil) }},
		kill{"token", func(ctx context.Context) error { return w.post(ctx, "/faults/expire-token", nil) }},
		kill{"rate limit", func(ctx context.Context) error { return w.post(ctx, "/faults/rate-limit", nil) }},
	)
	w.spying.Go(w.spy)
	return w, nil
}

// program returns the path of a program that is built for this test. .dev/bin has the programs of
// the cluster only.
func (w *world) program(name string) string {
	return filepath.Join(w.cluster.Bin(), "runners", name)
}

// build builds the programs that are not part of the cluster.
func (w *world) build(ctx context.Context) error {
	return errors.Join(
		os.MkdirAll(w.program(""), 0o755),
		build.Program(ctx, w.program("macrack-runners"), "runners", "./cmd/macrack-runners"),
		build.Program(ctx, w.program("fake-github"), "runners", "./cmd/fake-github"),
		build.Program(ctx, filepath.Join(w.cluster.Bin(), "helm"), "test/conformance", "helm.sh/helm/v4/cmd/helm"),
	)
}

// crash kills one of the components with a name, and starts it again.
func (w *world) crash(ctx context.Context, name string, count int) error {
	name = fmt.Sprintf("%s-%d", name, 1+rand.IntN(count))
	if err := w.cluster.Kill(ctx, name); err != nil {
		return err
	}
	// It is started again also at the end of the test.
	return w.cluster.Restart(context.WithoutCancel(ctx), name)
}

func (w *world) start(child *process.Child) error {
	w.children = append(w.children, child)
	return child.Start()
}

func (w *world) stop() {
	select {
	case <-w.stopped:
	default:
		close(w.stopped)
	}
	w.spying.Wait()
	for _, child := range w.children {
		if child.Running() {
			child.Stop()
		}
	}
}

func (w *world) configFile() string { return filepath.Join(w.cluster.Dir(), "runners.yaml") }

// killRunner kills the process of a stand-in, if one exists. It waits for one that runs a job: the
// job then fails.
func (w *world) killRunner(ctx context.Context) error {
	link, err := w.runner(ctx)
	if err != nil || link == "" {
		return err
	}
	text, err := os.ReadFile(filepath.Join(link, "pid"))
	if err != nil {
		return nil // it has just ended
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return err
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return nil
}

// runner returns the link folder of a stand-in that runs a job; after busyPatience, that of an idle
// one, or "".
func (w *world) runner(ctx context.Context) (string, error) {
	exists := func(link, file string) bool {
		_, err := os.Stat(filepath.Join(link, file))
		return err == nil
	}
	idle := func(link string) bool { return !exists(link, "started") || exists(link, "done") }
	for deadline := time.Now().Add(busyPatience); ; {
		links, err := filepath.Glob(w.links)
		if err != nil {
			return "", err
		}
		busy := slices.DeleteFunc(slices.Clone(links), idle)
		switch {
		case len(busy) > 0:
			return busy[rand.IntN(len(busy))], nil
		case time.Now().After(deadline) && len(links) > 0:
			return links[rand.IntN(len(links))], nil
		case time.Now().After(deadline):
			return "", nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *world) queue(ctx context.Context, count int, duration time.Duration) error {
	return w.post(ctx, "/jobs", url.Values{"count": {strconv.Itoa(count)}, "duration": {duration.String()}})
}

func (w *world) jobs(ctx context.Context) ([]job, error) {
	var jobs []job
	return jobs, w.get(ctx, "/jobs", &jobs)
}

// ended reports whether all jobs have ended.
func (w *world) ended(ctx context.Context) (bool, error) {
	jobs, err := w.jobs(ctx)
	for _, job := range jobs {
		if job.EndedAt.IsZero() {
			return false, err
		}
	}
	return true, err
}

// warm reports whether a virtual machine waits for a job.
func (w *world) warm(ctx context.Context) (bool, error) {
	out, _, err := w.cluster.Kubectl(ctx, tenant, "get", "macosinstances", "--namespace", tenant, "--selector", "runners.macrack.io/set=ios,!runners.macrack.io/job",
		"-o", `jsonpath={.items[*].status.conditions[?(@.type=="GuestReady")].status}`)
	return strings.Contains(out, "True"), err
}

func (w *world) until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %s for %s", patience, what))
	defer cancel()
	for {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (w *world) get(ctx context.Context, path string, value any) error {
	return w.do(ctx, http.MethodGet, path, value)
}

func (w *world) post(ctx context.Context, path string, values url.Values) error {
	return w.do(ctx, http.MethodPost, path+"?"+values.Encode(), nil)
}

func (w *world) do(ctx context.Context, method, path string, value any) error {
	request, err := http.NewRequestWithContext(ctx, method, w.control+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || value == nil {
		return err
	}
	return json.Unmarshal(data, value)
}
