package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		err  string
	}{
		{name: "none"},
		{name: "no probes", args: []string{"--metrics-bind-address="}},
		{name: "alone", args: []string{"--leader-elect=false", "--leader-elect-lease-duration=0"}},
		{name: "all", args: []string{"--kubeconfig=a", "--macrack-kubeconfig=b", "--metrics-bind-address=:0", "--workers=1", "--kube-api-qps=1", "--kube-api-burst=1"}},
		{name: "no port", args: []string{"--metrics-bind-address=localhost"}, err: "--metrics-bind-address must be host:port"},
		{name: "no workers", args: []string{"--workers=0"}, err: "--workers must be 1 or more"},
		{name: "no requests", args: []string{"--kube-api-qps=0"}, err: "--kube-api-qps and --kube-api-burst must be more than 0"},
		{name: "another lock", args: []string{"--leader-elect-resource-lock=configmaps"}, err: "--leader-elect-resource-lock must be leases"},
		{name: "no lock", args: []string{"--leader-elect-resource-name="}, err: "must not be empty"},
		{name: "too short", args: []string{"--leader-elect-lease-duration=5s"}, err: "must be longer than --leader-elect-renew-deadline"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOptions()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.addFlags(fs)
			require.NoError(t, fs.Parse(tt.args))
			err := o.validate()
			if tt.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.err)
			}
		})
	}
	assert.Equal(t, "macrack-system", newOptions().leaderElection.ResourceNamespace)
	assert.Equal(t, "macrack-controllers", newOptions().leaderElection.ResourceName)
	assert.True(t, newOptions().leaderElection.LeaderElect)
}

func TestConfigs(t *testing.T) {
	kubeconfig := func(server string) string {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		require.NoError(t, os.WriteFile(path, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
			"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+server+`"}}]}`), 0o600))
		return path
	}
	o := newOptions()
	o.kubeconfig = kubeconfig("https://cluster")
	core, macrack, err := o.configs()
	require.NoError(t, err)
	assert.Equal(t, "https://cluster", core.Host)
	assert.Equal(t, "https://cluster", macrack.Host)
	assert.Equal(t, "application/vnd.kubernetes.protobuf", macrack.ContentType)
	assert.Equal(t, float32(1000), macrack.QPS)
	assert.Equal(t, 2000, macrack.Burst)

	o.macrackKubeconfig = kubeconfig("https://macrack")
	core, macrack, err = o.configs()
	require.NoError(t, err)
	assert.Equal(t, "https://cluster", core.Host)
	assert.Equal(t, "https://macrack", macrack.Host)

	o.kubeconfig = "/does/not/exist"
	_, _, err = o.configs()
	assert.ErrorContains(t, err, `reading the kubeconfig "/does/not/exist"`)
}

func fastElection() *options {
	o := newOptions()
	o.leaderElection.LeaseDuration = metav1.Duration{Duration: 2 * time.Second}
	o.leaderElection.RenewDeadline = metav1.Duration{Duration: time.Second}
	o.leaderElection.RetryPeriod = metav1.Duration{Duration: 20 * time.Millisecond}
	return o
}

type synced bool

func (s synced) Synced() bool { return bool(s) }

func TestLeaseIsReleasedAfterTheWorkers(t *testing.T) {
	client := fake.NewClientset()
	o := fastElection()
	o.leaderElection.LeaseDuration.Duration = time.Hour // the test does not wait for its expiry
	lock := func(identity string) resourcelock.Interface {
		lock, err := resourcelock.New(o.leaderElection.ResourceLock, o.leaderElection.ResourceNamespace, o.leaderElection.ResourceName,
			client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: identity})
		require.NoError(t, err)
		return lock
	}
	var atWork atomic.Int32
	work := func(began chan<- struct{}, finish <-chan struct{}) func(context.Context) error {
		return func(ctx context.Context) error {
			assert.Equal(t, int32(1), atWork.Add(1), "two leaders work")
			close(began)
			<-ctx.Done()
			<-finish
			atWork.Add(-1)
			return nil
		}
	}

	firstCtx, stopFirst := context.WithCancel(t.Context())
	firstBegan, finishFirst, firstDone := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		firstDone <- elect(firstCtx, o, lock("first"), &health{manager: synced(true)}, work(firstBegan, finishFirst))
	}()
	<-firstBegan

	secondCtx, stopSecond := context.WithCancel(t.Context())
	second := &health{manager: synced(true)}
	secondBegan, finishSecond, secondDone := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { secondDone <- elect(secondCtx, o, lock("second"), second, work(secondBegan, finishSecond)) }()
	assert.NoError(t, second.ready(nil), "a standby is ready")
	assert.Error(t, (&health{manager: synced(false)}).ready(nil), "a process without caches is not ready")

	stopFirst()
	select {
	case <-secondBegan:
		t.Fatal("the second began before the workers of the first ended")
	case <-time.After(10 * o.leaderElection.RetryPeriod.Duration):
	}
	close(finishFirst)
	require.NoError(t, <-firstDone)
	<-secondBegan
	stopSecond()
	close(finishSecond)
	assert.NoError(t, <-secondDone)
}

func TestStandbyStopsAtOnce(t *testing.T) {
	client := fake.NewClientset()
	o := fastElection()
	lock, err := resourcelock.New(o.leaderElection.ResourceLock, "n", "l", client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "x"})
	require.NoError(t, err)
	now := metav1.Now()
	require.NoError(t, lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "another", LeaseDurationSeconds: 3600, AcquireTime: now, RenewTime: now}))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	assert.NoError(t, elect(ctx, o, lock, &health{}, func(context.Context) error {
		t.Error("the workers run without the lease")
		return nil
	}))
}

func TestErrorOfTheWorkers(t *testing.T) {
	client := fake.NewClientset()
	o := fastElection()
	lock, err := resourcelock.New(o.leaderElection.ResourceLock, "n", "l", client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "x"})
	require.NoError(t, err)
	broken := errors.New("broken")
	assert.ErrorIs(t, elect(t.Context(), o, lock, &health{}, func(context.Context) error { return broken }), broken)
}

func TestLeaseIsLost(t *testing.T) {
	client := fake.NewClientset()
	var unreachable atomic.Bool
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return unreachable.Load(), nil, errors.New("unreachable")
	})
	o := fastElection()
	lock, err := resourcelock.New(o.leaderElection.ResourceLock, "n", "l", client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "x"})
	require.NoError(t, err)
	err = elect(t.Context(), o, lock, &health{}, func(ctx context.Context) error {
		unreachable.Store(true)
		<-ctx.Done()
		return nil
	})
	assert.ErrorIs(t, err, errLeadershipLost)
}

func TestLostLeaseIsReleasedAfterTheWorkers(t *testing.T) {
	client := fake.NewClientset()
	var failing, working atomic.Bool
	var released atomic.Int32
	client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		holder := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).Spec.HolderIdentity
		if holder == nil || *holder == "" {
			assert.False(t, working.Load(), "lease released while workers run")
			released.Add(1)
			return false, nil, nil
		}
		return failing.Load(), nil, errors.New("unavailable for a while")
	})
	o := fastElection()
	lock, err := resourcelock.New(o.leaderElection.ResourceLock, "n", "l", client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "x"})
	require.NoError(t, err)
	err = elect(t.Context(), o, lock, &health{}, func(ctx context.Context) error {
		working.Store(true)
		failing.Store(true)
		<-ctx.Done()
		assert.Zero(t, released.Load(), "lease released before the workers were stopped")
		working.Store(false)
		return nil
	})
	assert.ErrorIs(t, err, errLeadershipLost)
	assert.Equal(t, int32(1), released.Load())
}

func TestProbesAndMetrics(t *testing.T) {
	get := func(h *health, path string) (int, string) {
		w := httptest.NewRecorder()
		h.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	h := &health{manager: synced(false), leader: leaderelection.NewLeaderHealthzAdaptor(time.Second)}
	for _, path := range []string{"/healthz", "/livez"} {
		code, body := get(h, path)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Equal(t, "ok", body, path)
	}
	code, body := get(h, "/readyz")
	assert.Equal(t, http.StatusInternalServerError, code)
	assert.Contains(t, body, "controllers failed")
	code, _ = get(h, "/healthz")
	assert.Equal(t, http.StatusOK, code)
	h.manager = synced(true)
	code, _ = get(h, "/readyz")
	assert.Equal(t, http.StatusOK, code)
	code, body = get(h, "/metrics")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, "leader_election_master_status")

	stop, err := serve(t.Context(), "127.0.0.1:0", h)
	require.NoError(t, err)
	stop()
	_, err = serve(t.Context(), "256.0.0.1:0", h)
	assert.ErrorContains(t, err, "--metrics-bind-address")
}
