package macnode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/controllers/testutil"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/rules"
)

// noon is the time at which the controller begins to watch, by its own clock.
var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func renewed(at time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	if !at.IsZero() {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: at}
	}
	return lease
}

// A step of a heartbeatScenario.
type step struct {
	after time.Duration // since the last step
	known *time.Time    // the renewal that exists at the start
	beat  *time.Time
	due   time.Duration // from the start, 0 for never
	write string
}

type heartbeatScenario struct {
	name  string
	ready string // as stored at the start
	steps []step
}

const minute = time.Minute

// at returns a time of the Mac's own clock, which is an hour slow: only its progress counts.
func at(seconds int) *time.Time {
	t := noon.Add(-time.Hour + time.Duration(seconds)*time.Second)
	return &t
}

func (s heartbeatScenario) run(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	mac := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	if s.ready != "" {
		mac.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionStatus(s.ready), Reason: ReasonHeartbeat, Message: messageHeartbeat}}
	}
	c.Add(mac)
	c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
		updated := object.(*rackv1alpha1.MacNode)
		require.Len(t, updated.Status.Conditions, 1)
		ready := updated.Status.Conditions[0]
		assert.True(t, c.Clock.Now().Equal(ready.LastTransitionTime.Time))
		c.Cache(updated)
		return string(ready.Status) + " " + ready.Reason, nil
	})
	r := newReconciler(c.Dependencies, newHeartbeats(c.Clock.Now))
	for i, step := range s.steps {
		c.Clock.Step(step.after)
		c.Calls = nil
		if step.known != nil {
			assert.False(t, r.heartbeats.observe(renewed(*step.known), true))
		}
		if step.beat != nil {
			r.heartbeats.observe(renewed(*step.beat), false)
		}
		due, err := r.reconcile(t.Context(), "mac-1")
		require.NoError(t, err)
		assert.Equal(t, step.write, strings.Join(c.Calls, ", "), "step %d", i)
		if step.due == 0 {
			assert.Zero(t, due, "step %d", i)
		} else {
			assert.Equal(t, noon.Add(step.due), due, "step %d", i)
		}
		var events []string
		for _, event := range c.Events.Drain() {
			events = append(events, strings.Join(strings.Fields(event)[:2], " "))
		}
		assert.Equal(t, map[string][]string{
			"":                       nil,
			"True Heartbeat":         {"Normal Heartbeat"},
			"False HeartbeatMissing": {"Warning HeartbeatMissing"},
		}[step.write], events)
	}
}

func TestHeartbeats(t *testing.T) {
	for _, tt := range []heartbeatScenario{
		{"the first heartbeat", "", []step{
			{beat: at(0), due: minute, write: "True Heartbeat"},
			{after: 10 * time.Second, beat: at(10), due: 70 * time.Second},
			{after: minute - time.Second, due: 70 * time.Second},
		}},
		{"silent for too long, then back", "True", []step{
			{beat: at(0), due: minute},
			{after: minute - time.Second, due: minute},
			{after: time.Second, write: "False HeartbeatMissing"},
			{after: time.Second, beat: at(61), due: minute + 61*time.Second, write: "True Heartbeat"},
		}},
		{"the same renewal again is no heartbeat", "True", []step{
			{beat: at(0), due: minute},
			{after: 59 * time.Second, beat: at(0), due: minute},
			{after: time.Second, beat: at(0), write: "False HeartbeatMissing"},
		}},
		{"never online", "", []step{
			{due: minute},
			{after: minute},
			{after: minute / 2, beat: at(90), due: minute + 90*time.Second, write: "True Heartbeat"},
		}},
		{"never online, with the server's condition of a new Mac", "Unknown", []step{
			{due: minute},
			{after: minute},
			{after: minute / 2, beat: at(90), due: minute + 90*time.Second, write: "True Heartbeat"},
		}},
		{"a heartbeat without a time", "", []step{
			{beat: &time.Time{}, due: minute},
		}},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestHeartbeatsAfterAGapOfTheController(t *testing.T) {
	for _, tt := range []heartbeatScenario{
		{"a new leader gives every agent the full time", "True", []step{
			{known: at(-3600), due: minute},
			{after: minute - time.Second, due: minute},
			{after: time.Second, write: "False HeartbeatMissing"},
		}},
		{"a new leader ignores old heartbeats", "False", []step{
			{known: at(-5), due: minute},
			{after: 5 * time.Second, beat: at(5), due: 65 * time.Second, write: "True Heartbeat"},
		}},
		{"a new leader, no Lease at all", "True", []step{
			{due: minute},
			{after: minute, write: "False HeartbeatMissing"},
		}},
		{"this process has slept, or the clock was set: the time restarts", "True", []step{
			{beat: at(0), due: minute},
			{after: 24 * time.Hour, due: 24*time.Hour + minute},
			{after: minute - time.Second, due: 24*time.Hour + minute},
			{after: time.Second, write: "False HeartbeatMissing"},
		}},
		{"this process has slept, and the agent has not", "True", []step{
			{beat: at(0), due: minute},
			{after: 24 * time.Hour, due: 24*time.Hour + minute},
			{after: time.Second, beat: at(9), due: 24*time.Hour + time.Second + minute},
		}},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestHeartbeatsOfADeletedMacAreForgotten(t *testing.T) {
	h := newHeartbeats(func() time.Time { return noon })
	h.observe(renewed(noon), false)
	due, err := newReconciler(testutil.NewCluster(t, noon).Dependencies, h).reconcile(t.Context(), "mac-1")
	require.NoError(t, err)
	assert.Zero(t, due)
	assert.Empty(t, h.last)
}

func TestNoEventWithoutAWrite(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	c.Add(&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}})
	refused := errors.New("refused")
	c.Record(func(clienttesting.Action, runtime.Object) (string, error) { return "", refused })
	h := newHeartbeats(c.Clock.Now)
	h.observe(renewed(noon), false)
	_, err := newReconciler(c.Dependencies, h).reconcile(t.Context(), "mac-1")
	assert.ErrorIs(t, err, refused)
	assert.Empty(t, c.Events.Drain())
}

// A condition is updated even if its status stays, but without an Event.
func TestReadyFollowsTheGeneration(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	c.Add(&rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1", Generation: 3},
		Status: rackv1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{
			Type: "Ready", Status: metav1.ConditionTrue, Reason: ReasonHeartbeat, Message: "of an earlier version", ObservedGeneration: 2,
		}}},
	})
	c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
		mac := object.(*rackv1alpha1.MacNode)
		c.Cache(mac)
		return fmt.Sprintf("%s %d", mac.Status.Conditions[0].Message, mac.Status.Conditions[0].ObservedGeneration), nil
	})
	h := newHeartbeats(c.Clock.Now)
	h.observe(renewed(noon), false)
	r := newReconciler(c.Dependencies, h)
	for range 2 {
		_, err := r.reconcile(t.Context(), "mac-1")
		require.NoError(t, err)
	}
	assert.Equal(t, []string{messageHeartbeat + " 3"}, c.Calls, "an unchanged condition is not written again")
	assert.Empty(t, c.Events.Drain())
}

// TestChangedInterval checks agents that use another interval than the configuration requires:
// their version does not know the interval of the fleet, or they have not received it yet.
func TestChangedInterval(t *testing.T) {
	agents := func(interval, offlineAfter time.Duration) *configv1alpha1.RackConfig {
		return &configv1alpha1.RackConfig{
			ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName},
			Spec: configv1alpha1.RackConfigSpec{Agent: configv1alpha1.AgentConfig{
				HeartbeatInterval: scalar.NewDuration(interval), OfflineAfter: scalar.NewDuration(offlineAfter),
			}},
		}
	}
	large := agents(10*time.Second, minute)
	large.Status.HeartbeatInterval = scalar.NewDuration(20 * time.Second)
	for _, tt := range []struct {
		name    string
		config  *configv1alpha1.RackConfig
		used    time.Duration // by the agent
		offline time.Duration
	}{
		{"the interval of the fleet", large, 20 * time.Second, minute},
		{"an agent that does not know it", large, 10 * time.Second, minute},
		{"the configuration was shortened", agents(time.Second, 10*time.Second), 20 * time.Second, minute},
		{"and the agent knows it", agents(time.Second, 10*time.Second), time.Second, 10 * time.Second},
		{"an interval of minutes was shortened", agents(10*time.Second, minute), 5 * minute, 15 * minute},
		{"the configuration was lengthened", agents(minute, 5*minute), 10 * time.Second, 5 * minute},
	} {
		for _, restarted := range []bool{false, true} { // the controllers, at the last heartbeat
			t.Run(fmt.Sprintf("%s, restarted %t", tt.name, restarted), func(t *testing.T) {
				c := testutil.NewCluster(t, noon)
				c.Add(tt.config, &rackv1alpha1.MacNode{
					ObjectMeta: metav1.ObjectMeta{Name: "mac-1"},
					Status: rackv1alpha1.MacNodeStatus{Conditions: []metav1.Condition{
						{Type: "Ready", Status: metav1.ConditionTrue, Reason: ReasonHeartbeat, Message: messageHeartbeat},
					}},
				})
				c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
					return string(object.(*rackv1alpha1.MacNode).Status.Conditions[0].Status), nil
				})
				r := newReconciler(c.Dependencies, newHeartbeats(c.Clock.Now))
				lease := renewed(noon)
				seconds := int32(rules.LeaseDuration(tt.used) / time.Second)
				lease.Spec.LeaseDurationSeconds = &seconds
				r.heartbeats.observe(lease, restarted)

				c.Clock.Step(tt.offline - time.Second)
				due, err := r.reconcile(t.Context(), "mac-1")
				require.NoError(t, err)
				assert.Equal(t, noon.Add(tt.offline), due)
				assert.Empty(t, c.Calls)
				c.Clock.Step(time.Second)
				_, err = r.reconcile(t.Context(), "mac-1")
				require.NoError(t, err)
				assert.Equal(t, []string{"False"}, c.Calls)
			})
		}
	}
}

// Heartbeats of the cluster's other Nodes are not kept for ever.
func TestLeasesThatAreDeletedAreForgotten(t *testing.T) {
	core, ours := kubefake.NewClientset(), fake.NewSimpleClientset(&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}})
	leases := core.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for _, name := range []string{"mac-1", "linux-1", "linux-2"} {
		lease := renewed(noon)
		lease.Name = name
		_, err := leases.Create(t.Context(), lease, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	deps, err := shared.New(ours, core, clocktesting.NewFakeClock(noon), record.NewFakeRecorder(10))
	require.NoError(t, err)
	h := newHeartbeats(deps.Clock.Now)
	newController(deps, h)
	require.NoError(t, deps.Start(t.Context()))
	have := func(names ...string) func() bool {
		return func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return slices.Equal(names, slices.Sorted(maps.Keys(h.last)))
		}
	}
	require.Eventually(t, have("linux-1", "linux-2", "mac-1"), time.Minute, time.Millisecond)
	for _, name := range []string{"mac-1", "linux-1"} {
		require.NoError(t, leases.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	require.Eventually(t, have("linux-2", "mac-1"), time.Minute, time.Millisecond, "the silence of a Mac does not restart")
}
