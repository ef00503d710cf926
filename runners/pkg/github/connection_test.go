package github

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/github/githubtest"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

// secret replaces the credentials.
func (w *world) secret(data map[string]string) {
	w.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace}, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	_, err := w.core.CoreV1().Secrets(namespace).Update(w.Context(), secret, metav1.UpdateOptions{})
	require.NoError(w, err)
}

func newKey(t *testing.T) (*rsa.PublicKey, string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return &key.PublicKey, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func TestAGitHubApp(t *testing.T) {
	w := newWorld(t)
	public, private := newKey(t)
	w.github.AppKey = public
	app := func(id, installation, key string) map[string]string {
		return map[string]string{keyAppID: id, keyInstallationID: installation, keyPrivateKey: key}
	}
	_, other := newKey(t)
	for _, wrong := range []map[string]string{
		{},
		app(githubtest.AppID, "", private),
		app(githubtest.AppID, githubtest.InstallationID, "no key"),
		app(githubtest.AppID, githubtest.InstallationID, "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"),
		app(githubtest.AppID, githubtest.InstallationID, other),
		app("other", githubtest.InstallationID, private),
	} {
		w.stop()
		w.secret(wrong)
		w.drain()
		w.seen = nil
		w.start()
		w.eventually("the event has the reason", w.event("Warning Unauthorized"))
		assert.False(t, w.event(private)(), "the key is secret")
	}
	w.secret(app(githubtest.AppID, githubtest.InstallationID, private))
	w.github.Queue(0)
	w.allEnded(1)
}

// newProxy returns the URL of a proxy that connects to a server whatever the host, and the number
// of its connections.
func newProxy(t *testing.T, server string) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var connections atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "use CONNECT", http.StatusMethodNotAllowed)
			return
		}
		target, err := net.Dial("tcp", server)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		connections.Add(1)
		client, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			target.Close()
			return
		}
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(target, client)
			target.Close()
		}()
		_, _ = io.Copy(client, target)
		client.Close()
	}))
	t.Cleanup(proxy.Close)
	return proxy, &connections
}

// The host of this GitHub exists behind the proxy only.
func TestAProxy(t *testing.T) {
	w := newWorld(t)
	direct, err := url.Parse(w.github.URL())
	require.NoError(t, err)
	proxy, connections := newProxy(t, direct.Host)
	settings := w.config.Sets[0].GitHub
	settings.URL, settings.ProxyURL = "https://example.com/acme", proxy.URL
	w.start()
	w.github.Queue(0)
	w.allEnded(1)
	assert.NotZero(t, connections.Load())
}

func TestAProxyThatIsDown(t *testing.T) {
	w := newWorld(t)
	settings := w.config.Sets[0].GitHub
	settings.ProxyURL = "http://127.0.0.1:1"
	w.start()
	w.eventually("the event has the reason", w.event("Warning Unreachable"))
	assert.Zero(t, w.github.Requests("POST /api/v3/actions/runner-registration"))
}

func TestReasons(t *testing.T) {
	secrets := corev1.Resource("secrets")
	for want, err := range map[string]error{
		"NotFound":          fmt.Errorf("reading the credentials: %w", apierrors.NewNotFound(secrets, "app")),
		"Unauthorized":      fmt.Errorf("reading the credentials: %w", apierrors.NewForbidden(secrets, "app", nil)),
		"RateLimitedOrDown": errors.New(`request failed(status="403 Forbidden"): You have exceeded a secondary rate limit`),
		"NoRunnerGroup":     errors.New(`no runner group found with name "ios"`),
		"Unreachable":       errors.New("dial tcp: connection refused"),
	} {
		assert.Equal(t, want, reasonOf(err))
	}
}

// While GitHub is down, the session is tried each minute at most.
func TestAnHourWithoutGitHub(t *testing.T) {
	w := newWorld(t)
	tries := &atomic.Int32{}
	w.core.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries.Add(1)
		return true, nil, errors.New("down")
	})
	clock := clocktesting.NewFakeClock(time.Now())
	environment := sets.Environment{Namespace: namespace, Events: w.events, Self: sets.Self(namespace, "macrack-runners"), Clock: clock}
	registry := prometheus.NewRegistry()
	environment.Metrics = metrics.New(registry)
	source := New(environment, &w.config.Sets[0], w.core.CoreV1().Secrets(namespace), w.macs, "test", "0")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		source.Run(ctx, func() {})
	}()
	for end := clock.Now().Add(time.Hour); clock.Now().Before(end); {
		if clock.HasWaiters() {
			clock.Step(time.Second)
		}
	}
	cancel()
	<-ended
	assert.Greater(t, tries.Load(), int32(40))
	assert.Less(t, tries.Load(), int32(80))
	assert.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP macrack_runners_source_up 1 while the source of the jobs is reachable, by the reason if not.
# TYPE macrack_runners_source_up gauge
macrack_runners_source_up{reason="Unreachable",set="ios"} 0
`), "macrack_runners_source_up"))
}

func TestARunnerThatGetsNoJob(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	at := func(delivered time.Duration, started bool) *instancev1alpha1.MacOSInstance {
		instance := &instancev1alpha1.MacOSInstance{}
		observe.SetTime(instance, observe.AnnotationJobDeliveredAt, clock.Now().Add(-delivered))
		if started {
			observe.SetTime(instance, observe.AnnotationJobStartedAt, clock.Now())
		}
		return instance
	}
	source := &Source{Environment: sets.Environment{Clock: clock}, jobs: 2, busy: 2}
	assert.Empty(t, source.Stale(at(registerTimeout-time.Second, false)))
	assert.Empty(t, source.Stale(at(time.Hour, true)))
	assert.Equal(t, sets.NotStarted, source.Stale(at(registerTimeout, false)), "its job runs on another machine")
	source.busy = 3
	assert.Equal(t, sets.NotNeeded, source.Stale(at(registerTimeout, false)), "its job was canceled")
}

// Leases that end and Macs that are offline can take more slots than the maximum has.
func TestASetWithoutSlots(t *testing.T) {
	w := newWorld(t)
	environment := sets.Environment{Namespace: namespace, Events: w.events, Self: sets.Self(namespace, "macrack-runners"), Clock: clock.RealClock{}}
	environment.Metrics = metrics.New(prometheus.NewRegistry())
	source := New(environment, &w.config.Sets[0], w.core.CoreV1().Secrets(namespace), w.macs, "test", "0")
	_, known := source.Waiting(sets.Capacity{Slots: -2})
	assert.False(t, known)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		source.Run(ctx, func() {})
	}()
	w.github.Queue(0)
	w.eventually("the job is known", func() bool {
		jobs, known := source.Waiting(sets.Capacity{Slots: -2})
		return known && len(jobs) == 1
	})
	cancel()
	<-ended
}

// The guest can report the end of a runner before GitHub does. Its job needs no other machine.
func TestAnEndThatGitHubHasNotReported(t *testing.T) {
	source := &Source{jobs: 1, known: true}
	jobs, _ := source.Waiting(sets.Capacity{Unreported: 1})
	assert.Empty(t, jobs)
	jobs, _ = source.Waiting(sets.Capacity{})
	assert.Len(t, jobs, 1)

	instance := &instancev1alpha1.MacOSInstance{}
	assert.Equal(t, sets.NotStarted, source.Result(instance), "the virtual machine has vanished")
	instance.Status.Startup = &instancev1alpha1.StartupResult{ExitCode: 137}
	assert.Equal(t, sets.NotStarted, source.Result(instance))
	observe.SetTime(instance, observe.AnnotationJobStartedAt, time.Now())
	assert.Empty(t, source.Result(instance), "GitHub will report it")
	source.results = map[string]sets.Result{"": sets.Failed}
	assert.Equal(t, sets.Failed, source.Result(instance))
}
