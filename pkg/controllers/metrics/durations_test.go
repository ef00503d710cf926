package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	clocktesting "k8s.io/utils/clock/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
)

func beat(c *Collector, name string, renewed time.Time, initial bool) {
	c.heartbeats.observe(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: name},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(renewed))},
	}, initial)
}

// observed returns the number and the sum of a histogram's values.
func observed(t *testing.T, name string) (n uint64, sum float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			h := f.GetMetric()[0].GetHistogram()
			return h.GetSampleCount(), h.GetSampleSum()
		}
	}
	t.Fatal("no such metric: ", name)
	return 0, 0
}

func TestPullTime(t *testing.T) {
	waiting := instance("a", instancev1alpha1.MacOSInstancePulling, imageReady(metav1.ConditionFalse, "Pulling", time.Minute))
	ready := instance("a", instancev1alpha1.MacOSInstanceStarting, imageReady(metav1.ConditionTrue, "Cached", 0))
	fresh := instance("a", instancev1alpha1.MacOSInstanceScheduled)
	for name, test := range map[string]struct {
		before, after *instancev1alpha1.MacOSInstance
		want          time.Duration
		pulled        bool
	}{
		"pulled":      {waiting, ready, time.Minute, true},
		"cached":      {fresh, ready, 0, false},
		"no change":   {ready, ready, 0, false},
		"in progress": {waiting, waiting, 0, false},
	} {
		got, pulled := pullTime(test.before, test.after)
		assert.Equal(t, test.want, got, name)
		assert.Equal(t, test.pulled, pulled, name)
	}
}

// Objects that exist at the start of a process are no observations, and a standby observes nothing.
func TestDurations(t *testing.T) {
	macrack, core := fake.NewSimpleClientset(), kubefake.NewClientset()
	leases, instances := watch.NewFake(), watch.NewFake()
	macrack.PrependWatchReactor("macnodeleases", clienttesting.DefaultWatchReactor(leases, nil))
	macrack.PrependWatchReactor("macosinstances", clienttesting.DefaultWatchReactor(instances, nil))
	deps, err := shared.New(macrack, core, clocktesting.NewFakeClock(now), record.NewFakeRecorder(1))
	require.NoError(t, err)
	c := New(deps)
	require.NoError(t, deps.Start(t.Context()))

	waiting := instance("a", instancev1alpha1.MacOSInstanceStarting, imageReady(metav1.ConditionFalse, "Pulling", 50*time.Second))
	running := instance("a", instancev1alpha1.MacOSInstanceRunning, imageReady(metav1.ConditionTrue, "Cached", 10*time.Second))
	pending, bound := lease("a", "base", rackv1alpha1.MacNodeLeasePending), lease("a", "base", rackv1alpha1.MacNodeLeaseBound)
	starts, startSum := observed(t, "macrack_instance_start_duration_seconds")
	pulls, pullSum := observed(t, "macrack_instance_image_pull_duration_seconds")
	binds, bindSum := observed(t, "macrack_lease_bind_duration_seconds")
	handled := func(phase instancev1alpha1.MacOSInstancePhase) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, err := deps.MacOSInstances.Lister().MacOSInstances("acme").Get("a")
			return err == nil && got.Status.Phase == phase
		}, time.Minute, time.Millisecond)
	}

	instances.Add(running)
	handled(running.Status.Phase)
	instances.Modify(waiting)
	handled(waiting.Status.Phase)
	instances.Modify(running)
	handled(running.Status.Phase)
	instances.Modify(waiting)
	handled(waiting.Status.Phase)
	time.Sleep(50 * time.Millisecond) // handlers run after the cache has changed
	c.SetLeading(true)
	instances.Modify(running)
	instances.Modify(running)
	leases.Add(pending)
	leases.Modify(bound)
	require.Eventually(t, func() bool {
		n, _ := observed(t, "macrack_instance_start_duration_seconds")
		m, _ := observed(t, "macrack_lease_bind_duration_seconds")
		return n > starts && m > binds
	}, time.Minute, time.Millisecond)

	n, sum := observed(t, "macrack_instance_start_duration_seconds")
	assert.Equal(t, starts+1, n)
	assert.InDelta(t, 60, sum-startSum, 1e-6)
	require.Eventually(t, func() bool { n, _ := observed(t, "macrack_instance_image_pull_duration_seconds"); return n == pulls+1 }, time.Minute, time.Millisecond)
	_, sum = observed(t, "macrack_instance_image_pull_duration_seconds")
	assert.InDelta(t, 40, sum-pullSum, 1e-6)
	n, sum = observed(t, "macrack_lease_bind_duration_seconds")
	assert.Equal(t, binds+1, n)
	assert.InDelta(t, 3600, sum-bindSum, 1e-6)
}
