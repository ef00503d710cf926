package gitlab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/fakes"
	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

const namespace = "acme"

// world is a set for GitLab with Macs and an API of its own.
type world struct {
	*testing.T
	client *fake.Clientset
	core   *kubernetesfake.Clientset
	macs   *fakes.Macs
	events *record.FakeRecorder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, client: fakes.New(), core: kubernetesfake.NewClientset(), events: record.NewFakeRecorder(1000)}
	w.macs = fakes.NewMacs(w.client, namespace, t.TempDir())
	parsed, err := config.Parse([]byte(`apiVersion: runners.macrack.io/v1alpha1
kind: RunnersConfiguration
sets:
- name: ios
  leases: {max: 1, growAfter: 0s}
  instances: {className: small, imageName: xcode}
  gitlab: {}
`))
	require.NoError(t, err)
	cache := sets.NewCache(w.client, namespace)
	environment := sets.Environment{
		Namespace: namespace, MacRack: w.client, Reader: cache, Events: w.events, Self: sets.Self(namespace, "macrack-runners"),
		Metrics: metrics.New(prometheus.NewRegistry()), Clock: clock.RealClock{},
	}
	manager := &sets.Manager{
		Environment: environment, Cache: cache, Load: func() (*config.RunnersConfiguration, error) { return parsed, nil },
		Source: func(set *config.Set) sets.Source {
			return New(environment, set, w.core)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { w.macs.Run(ctx) })
	ended.Go(func() { assert.NoError(t, manager.Run(ctx)) })
	t.Cleanup(func() { cancel(); ended.Wait() })
	return w
}

// stages are the stages of one job.
type stages struct {
	Executor
	out, log bytes.Buffer
}

func (w *world) job(id string, guests guest.Executor) *stages {
	s := &stages{Executor: Executor{
		Set: "ios", BuildsDir: "/builds", CacheDir: "/cache", Version: "1", Guests: guests, Clock: clock.RealClock{},
		Instances: w.client.InstanceV1alpha1().MacOSInstances(namespace), Leases: w.core.CoordinationV1().Leases(namespace),
		Getenv: func(name string) string {
			return map[string]string{"CUSTOM_ENV_CI_JOB_ID": id, "CUSTOM_ENV_CI_PROJECT_ID": "5", "CUSTOM_ENV_CI_SERVER_URL": "https://gitlab.com"}[name]
		},
	}}
	s.Out, s.Log = &s.out, &s.log
	return s
}

func (w *world) instances() []instancev1alpha1.MacOSInstance {
	list, err := w.client.InstanceV1alpha1().MacOSInstances(namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(w, err)
	return list.Items
}

func (w *world) event(text string) {
	w.Helper()
	var seen strings.Builder
	assert.Eventually(w, func() bool {
		for {
			select {
			case event := <-w.events.Events:
				seen.WriteString(event + "\n")
				continue
			default:
			}
			return strings.Contains(seen.String(), text)
		}
	}, 20*time.Second, 50*time.Millisecond, text)
}

func TestConfig(t *testing.T) {
	s := (&world{client: fakes.New(), core: kubernetesfake.NewClientset()}).job("1", nil)
	require.NoError(t, s.Config())
	var settings map[string]any
	require.NoError(t, json.Unmarshal(s.out.Bytes(), &settings))
	assert.Equal(t, "/builds", settings["builds_dir"])
	assert.Equal(t, "/cache", settings["cache_dir"])
	assert.Equal(t, false, settings["builds_dir_is_shared"])
}

// gitlab-runner runs the four stages, with several scripts.
func TestStages(t *testing.T) {
	w := newWorld(t)
	s := w.job("7", w.macs)
	require.NoError(t, s.Prepare(t.Context()), s.log.String())
	assert.Contains(t, s.log.String(), "Running on ios-1-")

	for _, script := range []string{"echo one >state; echo to stdout; echo to stderr >&2", "cat state; for n in 1 2 3; do echo $n; sleep 0.3; done"} {
		code, err := s.Run(t.Context(), []byte(script), "build_script")
		require.NoError(t, err)
		assert.Zero(t, code)
	}
	assert.Equal(t, "to stdout\nto stderr\none\n1\n2\n3\n", s.out.String())

	claims, err := w.core.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, claims.Items)
	require.NoError(t, s.Cleanup(t.Context()))
	require.NoError(t, s.Cleanup(t.Context()), "it can be repeated")
	w.event(`JobEnded job "gitlab-`)
	for _, instance := range w.instances() {
		assert.Empty(t, instance.Annotations[observe.AnnotationJob], "the machine was deleted")
	}
}

func TestEachJobHasAMachineOfItsOwn(t *testing.T) {
	w := newWorld(t)
	var ended sync.WaitGroup
	var mu sync.Mutex
	dirty := 0
	for n := range 5 {
		ended.Go(func() {
			s := w.job(fmt.Sprint(n), w.macs)
			if !assert.NoError(t, s.Prepare(t.Context())) {
				return
			}
			code, err := s.Run(t.Context(), []byte("mkdir mark"), "build_script")
			assert.NoError(t, err)
			mu.Lock()
			dirty += code
			mu.Unlock()
			assert.NoError(t, s.Cleanup(t.Context()))
		})
	}
	ended.Wait()
	assert.Zero(t, dirty)
}

func TestAFailedScript(t *testing.T) {
	w := newWorld(t)
	s := w.job("8", w.macs)
	require.NoError(t, s.Prepare(t.Context()))
	file := t.TempDir() + "/code"
	s.Getenv = func(name string) string {
		return map[string]string{"CUSTOM_ENV_CI_JOB_ID": "8", "CUSTOM_ENV_CI_PROJECT_ID": "5", "CUSTOM_ENV_CI_SERVER_URL": "https://gitlab.com", "BUILD_EXIT_CODE_FILE": file}[name]
	}
	code, err := s.Run(t.Context(), []byte("exit 42"), "build_script")
	require.ErrorIs(t, err, ErrBuild)
	assert.Equal(t, 42, code)
	require.NoError(t, s.WriteExitCode(code))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "42", string(text))
	// after_script still runs.
	_, err = s.Run(t.Context(), []byte("true"), "after_script")
	require.NoError(t, err)
	require.NoError(t, s.Cleanup(t.Context()))
	w.event(": Failed")
}

func TestACanceledJob(t *testing.T) {
	w := newWorld(t)
	s := w.job("9", w.macs)
	require.NoError(t, s.Prepare(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	_, err := s.Run(ctx, []byte("echo $$ >pid; trap 'echo trapped >trapped; exit 1' TERM; sleep 1000 & wait"), "build_script")
	require.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, ErrBuild)
	for _, instance := range w.instances() {
		if instance.Annotations[observe.AnnotationJob] != "" {
			assert.FileExists(t, w.macs.Home(instance.UID)+"/trapped", "the script can clean up")
		}
	}
	require.NoError(t, s.Cleanup(t.Context()))
	w.event(": Canceled")
}

// A failure of after_script does not fail the job at GitLab.
func TestAFailedAfterScript(t *testing.T) {
	w := newWorld(t)
	s := w.job("14", w.macs)
	require.NoError(t, s.Prepare(t.Context()))
	_, err := s.Run(t.Context(), []byte("exit 1"), "after_script")
	require.ErrorIs(t, err, ErrBuild)
	require.NoError(t, s.Cleanup(t.Context()))
	w.event(": Succeeded")
}

// breaking is an Executor whose connections break after a moment.
type breaking struct {
	*fakes.Macs
	mu     sync.Mutex
	breaks int
}

func (b *breaking) Execute(ctx context.Context, instance *instancev1alpha1.MacOSInstance, stdin io.Reader, stdout, stderr io.Writer, command ...string) (int, error) {
	b.mu.Lock()
	b.breaks++
	broken := b.breaks%2 == 1
	b.mu.Unlock()
	if broken {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(b.breaks)*20*time.Millisecond)
		defer cancel()
	}
	code, err := b.Macs.Execute(ctx, instance, stdin, stdout, stderr, command...)
	if broken && ctx.Err() != nil {
		return 0, nil // as after the end of the agent of the Mac
	}
	return code, err
}

func TestABrokenConnection(t *testing.T) {
	w := newWorld(t)
	guests := &breaking{Macs: w.macs}
	s := w.job("10", guests)
	require.NoError(t, s.Prepare(t.Context()))
	code, err := s.Run(t.Context(), []byte("echo start >>starts; n=0; while [ $n -lt 30 ]; do n=$((n+1)); echo line $n; sleep 0.1; done; exit 3"), "build_script")
	require.ErrorIs(t, err, ErrBuild)
	assert.Equal(t, 3, code)
	assert.Greater(t, guests.breaks, 3)
	var want strings.Builder
	for n := range 30 {
		fmt.Fprintf(&want, "line %d\n", n+1)
	}
	assert.Equal(t, want.String(), s.out.String(), "nothing is lost or printed twice")
	for _, instance := range w.instances() {
		if instance.Annotations[observe.AnnotationJob] != "" {
			starts, err := os.ReadFile(w.macs.Home(instance.UID) + "/starts")
			require.NoError(t, err)
			assert.Equal(t, "start\n", string(starts), "the script ran once")
		}
	}
	require.NoError(t, s.Cleanup(t.Context()))
}

// An API server that restarts fails no stage.
func TestAnOutage(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	failing := 0
	down := func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if failing == 0 {
			return false, nil, nil
		}
		failing--
		return true, nil, apierrors.NewServiceUnavailable("restarting")
	}
	s := w.job("13", w.macs)
	require.NoError(t, s.Prepare(t.Context()))
	// The set and the Macs have a part of the failures.
	w.client.PrependReactor("*", "*", down)
	w.core.PrependReactor("*", "*", down)
	fail := func() {
		mu.Lock()
		defer mu.Unlock()
		failing = 20
	}
	fail()
	code, err := s.Run(t.Context(), []byte("true"), "build_script")
	require.NoError(t, err)
	assert.Zero(t, code)
	fail()
	_, err = s.Run(t.Context(), []byte("exit 3"), "build_script")
	require.ErrorIs(t, err, ErrBuild)
	fail()
	require.NoError(t, s.Cleanup(t.Context()))
	w.event(": Failed")
}

func TestAMachineThatEnds(t *testing.T) {
	w := newWorld(t)
	s := w.job("11", w.macs)
	require.NoError(t, s.Prepare(t.Context()))
	time.AfterFunc(time.Second, func() {
		for _, instance := range w.instances() {
			_ = w.client.InstanceV1alpha1().MacOSInstances(namespace).Delete(context.Background(), instance.Name, metav1.DeleteOptions{})
		}
	})
	_, err := s.Run(t.Context(), []byte("sleep 1000"), "build_script")
	require.Error(t, err)
	assert.NotErrorIs(t, err, ErrBuild, "gitlab-runner can retry a failure of the system")
	require.NoError(t, s.Cleanup(t.Context()))
	_, err = s.Run(t.Context(), []byte("true"), "after_script")
	assert.ErrorContains(t, err, "has no virtual machine")
}

func TestNoMachine(t *testing.T) {
	w := &world{T: t, client: fakes.New(), core: kubernetesfake.NewClientset()}
	s := w.job("12", nil)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("waited 1s"))
	defer cancel()
	assert.ErrorContains(t, s.Prepare(ctx), `no virtual machine of set "ios" became free: waited 1s`)
	claims, err := w.core.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, claims.Items, 1)
	require.NoError(t, s.Cleanup(t.Context()))
	s.Getenv = func(string) string { return "" }
	assert.ErrorContains(t, s.Prepare(t.Context()), "CUSTOM_ENV_CI_JOB_ID")
}
