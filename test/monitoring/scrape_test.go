package monitoring

import (
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as in cmd/controllers
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/images"
	agentmetrics "macrack.io/macrack/pkg/agent/metrics"
	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/certificatemetrics"
	"macrack.io/macrack/pkg/controllers"
	controllersmetrics "macrack.io/macrack/pkg/controllers/metrics"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/registrytest"
)

var (
	once     sync.Once
	families map[string]*dto.MetricFamily
)

// scrape returns the metrics of the three programs, by name, and those of kube-state-metrics that
// the rules need. The programs run in this process.
func scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	once.Do(func() {
		useServer(t)
		all := map[string]*dto.MetricFamily{}
		for _, gatherer := range []prometheus.Gatherer{controllersMetrics(t), agentMetrics(t), legacyregistry.DefaultGatherer} {
			gathered, err := gatherer.Gather()
			require.NoError(t, err)
			for _, family := range gathered {
				all[family.GetName()] = family
			}
		}
		maps.Copy(all, kubeStateMetrics(t))
		families = all
	})
	require.NotNil(t, families, "the scrape has failed in an earlier test")
	return families
}

// kubeStateMetrics returns an excerpt of a scrape of kube-state-metrics.
func kubeStateMetrics(t *testing.T) map[string]*dto.MetricFamily {
	file, err := os.Open("testdata/kube-state-metrics.prom")
	require.NoError(t, err)
	defer file.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(file)
	require.NoError(t, err)
	return all
}

// useServer makes requests to a server, so that it has metrics of requests, reports, transactions
// and an object that it cannot decode.
func useServer(t *testing.T) {
	etcd := registrytest.StartEtcd(t)
	_, err := etcd.Client.Put(t.Context(), "/registry/rack.macrack.io/macnodes/broken", "broken")
	require.NoError(t, err)
	server := registrytest.StartServer(t, etcd, clock.RealClock{})
	admin := server.Client(t, "admin", "system:masters").RackV1alpha1()
	_, err = admin.MacNodeClasses().Create(t.Context(), &rackv1alpha1.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "base"},
		Spec: rackv1alpha1.MacNodeClassSpec{
			Model: "Mac mini (2024)", Chip: "Apple M4",
			Capacity: rackv1alpha1.MachineResources{CPU: scalar.MustParse("10"), Memory: scalar.MustParse("16Gi"), Storage: scalar.MustParse("256Gi")},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.MacNodes().Create(t.Context(), &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07MAC1", ClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.ComplianceReports().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	_, err = admin.MacNodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	response, err := server.HTTPClient(t, "admin", "system:masters").Get(server.URL("/metrics"))
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "macrack_rejections_total", "the server serves the registry of this process")
}

// controllersMetrics returns the metrics of a leader with a Mac in each state that has a metric.
func controllersMetrics(t *testing.T) prometheus.Gatherer {
	hourAgo := metav1.NewTime(time.Now().Add(-time.Hour))
	lease := func(name string, phase rackv1alpha1.MacNodeLeasePhase) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, UID: "uid-of-lease", CreationTimestamp: hourAgo},
			Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
			Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase, BoundAt: &hourAgo, HeldAt: &hourAgo},
		}
	}
	quarantined := func(reason string) *rackv1alpha1.MacNode {
		return &rackv1alpha1.MacNode{
			ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(reason)}, Spec: rackv1alpha1.MacNodeSpec{ClassName: "base"},
			Status: rackv1alpha1.MacNodeStatus{
				Quarantine: &rackv1alpha1.Quarantine{Reason: reason, Since: hourAgo}, Ledger: &rackv1alpha1.MacNodeLedger{Unconfirmed: true},
			},
		}
	}
	macrack := fake.NewSimpleClientset(
		quarantined(rackv1alpha1.ReasonLedgerBehind), quarantined(rackv1alpha1.ReasonLedgerForked),
		&rackv1alpha1.MacNode{
			ObjectMeta: metav1.ObjectMeta{Name: "mac-1"},
			Spec:       rackv1alpha1.MacNodeSpec{ClassName: "base"},
			Status: rackv1alpha1.MacNodeStatus{
				LeaseRef:       &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "held", UID: "uid-of-lease"},
				ReleasingSince: &hourAgo,
				Quarantine:     &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonScrubFailed, Since: hourAgo},
				Hardware:       &rackv1alpha1.MacNodeHardware{Storage: scalar.MustParse("2Gi"), FreeStorage: scalar.MustParse("1Gi")},
			},
		},
		lease("held", rackv1alpha1.MacNodeLeaseHeld),
		&rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "waiting", UID: "another"}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"}},
		&instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one"}},
	)
	core := kubefake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "mac-1"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(hourAgo.Time))},
	})
	deps, err := shared.New(macrack, core, clock.RealClock{}, record.NewFakeRecorder(1))
	require.NoError(t, err)
	collector := controllersmetrics.New(deps)
	collector.SetLeading(true)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	require.NoError(t, deps.Start(ctx))
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(collector)
	require.Eventually(t, func() bool { // handlers run after the cache has synced
		gathered, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range gathered {
			if family.GetName() == "macrack_mac_heartbeat_timestamp_seconds" {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)

	// The metrics of their queues and of the election.
	_, err = controllers.New(controllers.Config{MacRack: macrack, Core: core})
	require.NoError(t, err)
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "n", "l", core.CoreV1(), core.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "x"})
	require.NoError(t, err)
	_, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: controllers.Name, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	require.NoError(t, err)
	return registry
}

func agentMetrics(t *testing.T) prometheus.Gatherer {
	m := agentmetrics.New()
	cert, _, err := certutil.GenerateSelfSignedCertKey("mac-1", nil, nil)
	require.NoError(t, err)
	store := m.Store(&images.Simulated{Dir: t.TempDir(), Clock: clock.RealClock{}}, clock.RealClock{})
	m.Register(agentmetrics.Sources{
		Slots: func() (all [rules.MaxVMsPerMac]slots.Status) { return all }, Images: store.List, Dir: t.TempDir(),
		Certificates: map[string]certificatemetrics.Source{"client": certificatemetrics.PEM(func() ([]byte, error) { return cert, nil })},
	})
	return m.Gatherer()
}
