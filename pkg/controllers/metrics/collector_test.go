package metrics

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/testutil"
)

var update = flag.Bool("update", false, "write testdata")

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(-d))) }

func class(name string) *rackv1alpha1.MacNodeClass {
	return &rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func mac(name string, phase rackv1alpha1.MacNodePhase, change ...func(*rackv1alpha1.MacNodeStatus)) *rackv1alpha1.MacNode {
	m := &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: "SECRET-" + name, ClassName: "base", Location: rackv1alpha1.MacNodeLocation{Site: "fra", Rack: "r1"}},
		Status:     rackv1alpha1.MacNodeStatus{Phase: phase},
	}
	for _, f := range change {
		f(&m.Status)
	}
	return m
}

func leasedTo(lease *rackv1alpha1.MacNodeLease) func(*rackv1alpha1.MacNodeStatus) {
	return func(s *rackv1alpha1.MacNodeStatus) {
		s.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
	}
}

func lease(name, class string, phase rackv1alpha1.MacNodeLeasePhase, change ...func(*rackv1alpha1.MacNodeLeaseStatus)) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: *ago(time.Hour)},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: class},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
	}
	if phase != rackv1alpha1.MacNodeLeasePending {
		l.Status.BoundAt = ago(time.Hour)
	}
	for _, f := range change {
		f(&l.Status)
	}
	return l
}

func pendingFor(reason string) func(*rackv1alpha1.MacNodeLeaseStatus) {
	return func(s *rackv1alpha1.MacNodeLeaseStatus) {
		s.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: reason}}
	}
}

func instance(name string, phase instancev1alpha1.MacOSInstancePhase, conditions ...metav1.Condition) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, CreationTimestamp: *ago(time.Minute)},
		Status:     instancev1alpha1.MacOSInstanceStatus{Phase: phase, Conditions: conditions},
	}
}

func imageReady(status metav1.ConditionStatus, reason string, since time.Duration) metav1.Condition {
	return metav1.Condition{Type: instancev1alpha1.MacOSInstanceImageReady, Status: status, Reason: reason, LastTransitionTime: *ago(since)}
}

// register returns a registry with the collector.
func register(c *Collector) metrics.KubeRegistry {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(c)
	return registry
}

// gather returns the metrics of a registry in the text format.
func gather(t *testing.T, registry metrics.KubeRegistry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, family := range families {
		_, err := expfmt.MetricFamilyToText(&text, family)
		require.NoError(t, err)
	}
	return text.String()
}

func TestFleet(t *testing.T) {
	c := testutil.NewCluster(t, now)
	collector := New(c.Dependencies)
	bound := lease("build", "base", rackv1alpha1.MacNodeLeaseBound, func(s *rackv1alpha1.MacNodeLeaseStatus) {
		s.Instances = []rackv1alpha1.LeaseSlot{{Name: "one"}, {Name: "two"}}
	})
	held := lease("old", "base", rackv1alpha1.MacNodeLeaseHeld, func(s *rackv1alpha1.MacNodeLeaseStatus) { s.HeldAt = ago(10 * time.Minute) })
	releasing := lease("ended", "base", rackv1alpha1.MacNodeLeaseReleasing)
	c.Cache(
		class("base"), class("pro"),
		mac("mac-1", rackv1alpha1.MacNodeLeased, leasedTo(bound), func(s *rackv1alpha1.MacNodeStatus) {
			s.RunningVMs = 1
			s.Hardware = &rackv1alpha1.MacNodeHardware{
				SerialNumber: "SECRET", Storage: scalar.MustParse("256Gi"), FreeStorage: scalar.MustParse("100Gi"), MacOSVersion: "26.1", AgentVersion: "v1",
			}
		}),
		mac("mac-2", rackv1alpha1.MacNodeOffline, leasedTo(held)),
		mac("mac-3", rackv1alpha1.MacNodeReleasing, leasedTo(releasing), func(s *rackv1alpha1.MacNodeStatus) { s.ReleasingSince = ago(5 * time.Minute) }),
		mac("mac-4", rackv1alpha1.MacNodeQuarantined, func(s *rackv1alpha1.MacNodeStatus) {
			s.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonScrubFailed, Since: *ago(time.Hour)}
		}),
		mac("mac-5", rackv1alpha1.MacNodeQuarantined, func(s *rackv1alpha1.MacNodeStatus) {
			s.Quarantine = &rackv1alpha1.Quarantine{Reason: "seen by an operator", Since: *ago(time.Hour)}
		}),
		mac("mac-6", "", func(s *rackv1alpha1.MacNodeStatus) { s.Ledger = &rackv1alpha1.MacNodeLedger{Unconfirmed: true} }),
		mac("mac-7", rackv1alpha1.MacNodeAvailable, func(s *rackv1alpha1.MacNodeStatus) { s.Ledger = &rackv1alpha1.MacNodeLedger{} }),
		mac("mac-8", rackv1alpha1.MacNodeQuarantined, func(s *rackv1alpha1.MacNodeStatus) {
			s.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonLedgerForked, Since: *ago(time.Hour)}
		}),
		bound, held, releasing,
		lease("w1", "pro", rackv1alpha1.MacNodeLeasePending, pendingFor(rackv1alpha1.ReasonEmptyClass)),
		lease("w2", "base", "", pendingFor("")),
		lease("w3", "SECRET of a tenant", rackv1alpha1.MacNodeLeasePending, pendingFor(rackv1alpha1.ReasonUnknownClass)),
		lease("w4", "base", rackv1alpha1.MacNodeLeasePending, pendingFor("SECRET")),
		instance("one", instancev1alpha1.MacOSInstanceRunning),
		instance("two", instancev1alpha1.MacOSInstancePulling, imageReady(metav1.ConditionFalse, instancev1alpha1.ReasonPullFailed, 0)),
		instance("three", "", metav1.Condition{Type: instancev1alpha1.MacOSInstanceScheduledCondition, Status: metav1.ConditionFalse, Reason: "Unschedulable"}),
		instance("four", instancev1alpha1.MacOSInstanceStarting, imageReady(metav1.ConditionTrue, "Cached", 0)),
		instance("five", instancev1alpha1.MacOSInstancePulling, imageReady(metav1.ConditionFalse, "SECRET", 0)),
		instance("six", instancev1alpha1.MacOSInstanceFailed, imageReady(metav1.ConditionFalse, instancev1alpha1.ReasonPullFailed, 0)),
	)
	beat(collector, "mac-1", now.Add(-time.Hour), true)
	beat(collector, "mac-1", now.Add(-time.Hour+time.Second), false) // the clock of the Mac is wrong
	beat(collector, "mac-2", now.Add(-time.Hour), true)
	beat(collector, "mac-3", now.Add(time.Hour), true)
	beat(collector, "no-mac", now, false)

	registry := register(collector)
	assert.Empty(t, gather(t, registry), "a standby has no metrics of the fleet")
	collector.SetLeading(true)
	got := gather(t, registry)
	assert.NotContains(t, got, "SECRET")
	if *update {
		require.NoError(t, os.WriteFile("testdata/fleet.txt", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/fleet.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
	collector.SetLeading(false)
	assert.Empty(t, gather(t, registry))
}
