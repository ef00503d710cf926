package github

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/fakes"
	"macrack.io/macrack/runners/pkg/github/githubtest"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

const namespace = "acme"

// world is macrack-runners with a GitHub, Macs and an API of its own.
type world struct {
	*testing.T
	github *githubtest.Server
	client *fake.Clientset
	core   *kubernetesfake.Clientset
	macs   *fakes.Macs
	config *config.RunnersConfiguration
	events *record.FakeRecorder
	stop   func()

	mu   sync.Mutex
	seen []string // all events
}

func newWorld(t *testing.T) *world { return newWorldOf(t, 2) }

func newWorldOf(t *testing.T, macs int) *world {
	t.Helper()
	server, err := githubtest.New("")
	require.NoError(t, err)
	w := &world{T: t, github: server, client: fakes.New(), stop: func() {}, events: record.NewFakeRecorder(10000)}
	home := t.TempDir()
	w.macs = fakes.NewMacs(w.client, namespace, home)
	w.core = kubernetesfake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace}, Data: map[string][]byte{keyToken: []byte(githubtest.Token)},
	})
	w.config = &config.RunnersConfiguration{}
	document, err := yaml.Marshal(map[string]any{
		"apiVersion": config.APIVersion, "kind": config.Kind,
		"sets": []any{map[string]any{
			"name":      "ios",
			"leases":    map[string]any{"max": macs, "growAfter": "0s"},
			"instances": map[string]any{"className": "small", "imageName": "xcode"},
			"github":    map[string]any{"url": server.URL(), "caBundle": server.CA(), "secretName": "app", "startupScript": githubtest.Install},
		}},
	})
	require.NoError(t, err)
	w.config, err = config.Parse(document)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { w.macs.Run(ctx) })
	ended.Go(func() { server.Link(ctx, home+"/*/link") })
	t.Cleanup(func() {
		w.stop()
		cancel()
		ended.Wait()
		server.Close()
	})
	return w
}

// start starts an adapter; it replaces the one that runs.
func (w *world) start() {
	w.Helper()
	w.stop()
	cache := sets.NewCache(w.client, namespace)
	environment := sets.Environment{
		Namespace: namespace, MacRack: w.client, Reader: cache, Events: w.events, Self: sets.Self(namespace, "macrack-runners"),
		Metrics: metrics.New(prometheus.NewRegistry()), Clock: clock.RealClock{},
	}
	manager := &sets.Manager{
		Environment: environment, Cache: cache, Load: func() (*config.RunnersConfiguration, error) { return w.config, nil },
		Source: func(set *config.Set) sets.Source {
			return New(environment, set, w.core.CoreV1().Secrets(namespace), w.macs, "test", "0")
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	w.stop = func() {
		cancel()
		assert.NoError(w, <-ended)
		w.stop = func() {}
	}
}

func (w *world) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		select {
		case event := <-w.events.Events:
			w.seen = append(w.seen, event)
		default:
			return
		}
	}
}

// eventually waits for a condition, for minutes: the host may be busy.
func (w *world) eventually(what string, condition func() bool) {
	w.Helper()
	require.Eventually(w, condition, 5*time.Minute, 50*time.Millisecond, what)
}

func (w *world) event(text string) func() bool {
	return func() bool {
		w.drain()
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(strings.Join(w.seen, "\n"), text)
	}
}

// allEnded waits until all jobs have ended, and checks that each ran once.
func (w *world) allEnded(jobs int) {
	w.Helper()
	w.eventually("all jobs end", func() bool {
		ended := 0
		for _, job := range w.github.Jobs() {
			if !job.EndedAt.IsZero() {
				ended++
			}
		}
		return ended == jobs
	})
	runners := map[string]bool{}
	for _, job := range w.github.Jobs() {
		assert.Equal(w, 1, job.Starts, job.Name)
		assert.False(w, runners[job.RunnerName], "each job has a machine of its own")
		runners[job.RunnerName] = true
	}
}

func TestJobs(t *testing.T) {
	w := newWorld(t)
	w.start()
	for range 8 {
		w.github.Queue(50 * time.Millisecond)
	}
	w.allEnded(8)
	w.eventually("the results are known", w.event(`job "acme/app/1/job-8": Succeeded`))
	w.eventually("no runner is left", func() bool { return len(w.github.Runners()) == 0 })
	assert.Equal(t, 4, w.github.Capacity())
}

// The configurations are in no object and in no event.
func TestTheConfigurationIsSecret(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.github.Queue(2 * time.Second)
	var secrets []string
	w.eventually("the job runs", func() bool {
		secrets = w.github.Secrets()
		return len(secrets) > 0 && w.github.Jobs()[0].Starts == 1
	})
	instances, err := w.client.InstanceV1alpha1().MacOSInstances(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, instance := range instances.Items {
		text := fmt.Sprintf("%+v", instance)
		for _, secret := range secrets {
			assert.NotContains(t, text, secret)
		}
	}
	for _, args := range commandLines(t) {
		for _, secret := range secrets {
			assert.NotContains(t, args, secret)
		}
	}
	w.drain()
	for _, secret := range secrets {
		assert.NotContains(t, strings.Join(w.seen, "\n"), secret)
	}
	w.allEnded(1)
}

// commandLines returns the arguments of all processes of this host.
func commandLines(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("no /proc")
	}
	var lines []string
	for _, entry := range entries {
		if line, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline"); err == nil {
			lines = append(lines, string(line))
		}
	}
	return lines
}

func TestFaultsOfGitHub(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(*githubtest.Server)
	}{
		{"an expired token", (*githubtest.Server).ExpireToken},
		{"a dropped session", (*githubtest.Server).DropSession},
		{"a rate limit", func(s *githubtest.Server) { s.Fail(2, http.StatusTooManyRequests) }},
		{"an outage", func(s *githubtest.Server) { s.Fail(12, http.StatusServiceUnavailable) }},
		{"401", func(s *githubtest.Server) { s.Fail(4, http.StatusUnauthorized) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			for range 4 {
				w.github.Queue(100 * time.Millisecond)
			}
			w.eventually("a job runs", func() bool { return w.github.Jobs()[0].Starts == 1 })
			test.fault(w.github)
			for range 4 {
				w.github.Queue(100 * time.Millisecond)
			}
			w.allEnded(8)
		})
	}
}

func TestARunnerThatDies(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.github.Queue(time.Hour)
	w.eventually("the job runs", func() bool { return w.github.Jobs()[0].Starts == 1 })
	instances, err := w.client.InstanceV1alpha1().MacOSInstances(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: observe.LabelJob})
	require.NoError(t, err)
	for _, instance := range instances.Items {
		w.macs.KillGuest(instance.UID)
	}
	w.allEnded(1)
	w.eventually("the runner is removed from GitHub", func() bool { return len(w.github.Runners()) == 0 })
	w.eventually("the result is known", w.event("JobEnded"))
}

func TestARestartLosesNoJob(t *testing.T) {
	w := newWorld(t)
	w.start()
	for range 12 {
		w.github.Queue(300 * time.Millisecond)
	}
	for range 4 {
		time.Sleep(700 * time.Millisecond)
		w.start()
	}
	w.allEnded(12)
}

func TestAJobThatIsCanceled(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.github.Queue(100 * time.Millisecond)
	}
	w.github.Cancel(2)
	w.start()
	w.eventually("the others end", func() bool {
		jobs := w.github.Jobs()
		return !jobs[0].EndedAt.IsZero() && !jobs[2].EndedAt.IsZero()
	})
	assert.Zero(t, w.github.Jobs()[1].Starts)
}

func TestCredentials(t *testing.T) {
	w := newWorld(t)
	w.secret(map[string]string{keyToken: "wrong"})
	w.start()
	w.eventually("the event has the reason", w.event("Warning Unauthorized"))
	w.secret(map[string]string{keyToken: githubtest.Token})
	w.github.Queue(0)
	w.allEnded(1)
}

func TestASessionOfAnother(t *testing.T) {
	w := newWorld(t)
	w.github.SessionTTL = time.Hour
	w.start()
	w.eventually("a session is open", func() bool { return w.github.Requests("GET /queue") > 0 })
	first := w.stop
	w.stop = func() {}
	w.start()
	w.eventually("the second one waits", w.event("Warning SessionConflict"))
	first()
	w.github.Queue(0)
	w.allEnded(1)
}
