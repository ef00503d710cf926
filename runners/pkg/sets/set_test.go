package sets

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/observe"
)

func TestAJobRunsOnAMachineOfItsOwn(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	require.Len(t, w.allLeases(), 1)
	lease := w.allLeases()[0]
	assert.Equal(t, "ios-1", lease.Name)
	assert.Equal(t, 72*time.Hour, lease.Spec.ExpireAfter.Value(), "a lease without macrack-runners ends")
	require.Len(t, w.all(), 2, "both slots have machines")
	assert.Equal(t, int64(31*3600), *instance.Spec.ActiveDeadlineSeconds, "a machine without macrack-runners ends")
	assert.Equal(t, "job-0", instance.Labels[observe.LabelJob])
	assert.NotEmpty(t, instance.Annotations[observe.AnnotationJobDeliveredAt])
	assert.Equal(t, map[string]int{instance.Name: 1}, w.source.started)

	w.ends(instance, 0)
	w.source.jobs = 0
	w.step()
	w.step()
	assert.Empty(t, w.busy(), "the machine was deleted")
	require.Len(t, w.all(), 2, "another one replaces it")
	assert.NotEmpty(t, w.allLeases()[0].Annotations[observe.AnnotationJobEndedAt])
	w.eventsContain(`JobEnded job "job 0": Succeeded`)
	assert.Equal(t, 1.0, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "Succeeded")))
}

func TestTwoReplicasAssignAJobOnce(t *testing.T) {
	w := newWorld(t, "")
	w.source.jobs = 1
	w.step()
	w.bind()
	w.step()
	w.boot()
	// Both have read the same objects.
	other := New(w.Environment, w.config, w.source, &floor.History{})
	first, err := w.observe()
	require.NoError(t, err)
	second, err := other.observe()
	require.NoError(t, err)
	for _, d := range floor.Decide(w.facts(first)) {
		if d.Action == floor.Place {
			w.assign(t.Context(), first, d)
		}
	}
	for _, d := range floor.Decide(other.facts(second)) {
		if d.Action == floor.Place {
			other.assign(t.Context(), second, d)
		}
	}
	assert.Len(t, w.busy(), 1)
}

func TestARestartContinues(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	w.Set = New(w.Environment, w.config, w.source, &floor.History{})
	for range 3 {
		w.step()
	}
	assert.Len(t, w.allLeases(), 1)
	assert.Len(t, w.all(), 2)
	assert.Equal(t, 1, w.source.started[instance.Name], "the job is not started again")

	// A job that was assigned and not started is started by the next process.
	w.source.jobs, w.source.startErr = 2, errors.New("killed")
	w.step()
	require.Len(t, w.busy(), 2)
	w.source.startErr = nil
	w.Set = New(w.Environment, w.config, w.source, &floor.History{})
	w.step()
	assert.Len(t, w.source.started, 2)
}

func TestAJobThatDoesNotStartRunsElsewhere(t *testing.T) {
	w := newWorld(t, "")
	w.source.startErr = errors.New("no runner in the image")
	instance := w.run()
	w.clock.Step(startTimeout)
	w.step()
	w.step()
	for _, other := range w.all() {
		assert.NotEqual(t, instance.UID, other.UID)
	}
	w.eventsContain("JobNotStarted no runner in the image")
	assert.Equal(t, 1.0, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "NotStarted")))
}

func TestTheSourceOutlivesAnOutage(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	w.source.forgetErr = errors.New("GitHub is down")
	w.source.jobs = 0
	w.ends(instance, 0)
	w.step()
	w.step()
	require.Len(t, w.busy(), 1, "the runner is not removed yet")
	for range 200 {
		w.step()
	}
	assert.Empty(t, w.busy(), "the machine is deleted after two minutes at most")
	w.eventsContain("NotForgotten")
}

func TestStaleJobs(t *testing.T) {
	w := newWorld(t, "")
	w.run()
	w.source.stale, w.source.forgetErr = NotNeeded, ErrRunning
	w.step()
	require.Len(t, w.busy(), 1, "its job has just started")
	assert.NotEmpty(t, w.busy()[0].Annotations[observe.AnnotationJobStartedAt])
	w.source.forgetErr, w.source.jobs = nil, 0
	w.clock.Step(time.Minute)
	w.step()
	w.step()
	assert.Empty(t, w.busy())
}

func TestTimeout(t *testing.T) {
	w := newWorld(t, ", timeout: 1h")
	instance := w.run()
	w.source.jobs = 0
	w.clock.Step(time.Hour)
	w.step()
	w.step()
	for _, other := range w.all() {
		assert.NotEqual(t, instance.UID, other.UID)
	}
	assert.Equal(t, 1.0, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "TimedOut")))
}

func TestTheFloor(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	w.source.jobs = 0
	w.ends(instance, 0)
	w.step()
	w.clock.Step(20 * time.Hour)
	w.step()
	assert.Len(t, w.allLeases(), 1, "its hours are paid")
	w.clock.Step(3*time.Hour + 50*time.Minute)
	*w.history = floor.History{} // without yesterday's demand
	w.step()
	assert.Empty(t, w.allLeases(), "it ends at its floor")
	w.eventsContain("ReleaseAtFloor")
}

func TestALeaseInUseIsRenewed(t *testing.T) {
	w := newWorld(t, "")
	w.run()
	w.clock.Step(30 * time.Hour)
	w.step()
	w.step() // the job has timed out, which changes the lease too
	assert.Equal(t, 102*time.Hour, w.allLeases()[0].Spec.ExpireAfter.Value())
}

func TestOverlay(t *testing.T) {
	now := time.Now()
	object := func(version string) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: version}}
	}
	o := overlay[*rackv1alpha1.MacNodeLease]{}
	o.put(object("2"), now)
	assert.Equal(t, "2", o.merge([]*rackv1alpha1.MacNodeLease{object("1")}, now)[0].ResourceVersion, "the cache lags")
	assert.Equal(t, "3", o.merge([]*rackv1alpha1.MacNodeLease{object("3")}, now)[0].ResourceVersion)
	assert.Empty(t, o.merge(nil, now), "it was deleted")
	o.put(object("4"), now)
	assert.Len(t, o.merge(nil, now), 1, "it was created")
	assert.Empty(t, o.merge(nil, now.Add(lag)))
}
