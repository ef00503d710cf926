package sets

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/observe"
)

func TestFailingMachinesAreDelayed(t *testing.T) {
	w := newWorld(t, "")
	w.run()
	created := w.created()
	for range 600 { // ten minutes
		for _, instance := range w.all() {
			if instance.Annotations[observe.AnnotationJob] == "" && instance.Status.Phase == "" {
				w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = instancev1alpha1.MacOSInstanceFailed })
			}
		}
		w.step()
		for _, instance := range w.busy() {
			w.ends(instance, 1)
		}
	}
	assert.Less(t, *created, 20)
	assert.Equal(t, "MachineFailed", w.pausedBy())
	assert.Len(t, w.allLeases(), 1, "no other Mac is leased for it")
}

// A runner that accepts its configuration and ends at once, with or without an error, must not make
// machines boot for ever.
func TestRunnersThatGetNoJobAreDelayed(t *testing.T) {
	for name, test := range map[string]struct {
		code   int32
		result Result
	}{
		"with an error": {1, NotStarted},
		"without":       {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			w.source.result = func(*instancev1alpha1.MacOSInstance) Result { return test.result }
			w.run()
			created := w.created()
			for range 600 { // ten minutes
				w.boot()
				w.step()
				for _, instance := range w.busy() {
					if instance.Status.Startup == nil {
						w.ends(instance, test.code)
					}
				}
			}
			assert.Less(t, *created, 20)
			assert.Equal(t, "NotStarted", w.pausedBy())
			assert.NotZero(t, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "NotStarted")))
		})
	}
}

// A job that runs to its end shows that machines work.
func TestAJobEndsTheDelay(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	w.failures.count = 9
	w.step()
	assert.Equal(t, 9, w.failures.count, "its start shows nothing yet")
	w.ends(instance, 1)
	w.step()
	w.step()
	assert.Zero(t, w.failures.count)
}

func TestAGuestThatShutsItselfDown(t *testing.T) {
	for name, test := range map[string]struct {
		request *instancev1alpha1.StopRequest
		paused  string
	}{
		"by itself": {nil, "MachineFailed"},
		"on demand": {&instancev1alpha1.StopRequest{Reason: "Asked"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			w.run()
			for _, instance := range w.all() {
				if instance.Annotations[observe.AnnotationJob] == "" {
					w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
						s.Phase, s.StopRequest = instancev1alpha1.MacOSInstanceStopped, test.request
					})
				}
			}
			w.step()
			w.step()
			assert.Equal(t, test.paused, w.pausedBy())
		})
	}
}

func TestASilentGuestIsReplaced(t *testing.T) {
	w := newWorld(t, "")
	w.source.jobs = 1
	w.step()
	w.bind()
	w.step()
	at := metav1.NewTime(w.clock.Now())
	for _, instance := range w.all() {
		w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Phase, s.StartedAt = instancev1alpha1.MacOSInstanceRunning, &at
		})
	}
	w.step()
	require.Len(t, w.all(), 2)
	w.clock.Step(bootTimeout)
	w.step()
	assert.Empty(t, w.all())
	assert.Equal(t, 2, w.failures.count+len(w.failed))
}

// A deletion that is repeated counts once.
func TestARepeatedDeletionIsOneFailure(t *testing.T) {
	w := newWorld(t, "")
	w.source.jobs = 1
	w.step()
	w.bind()
	w.step()
	at := metav1.NewTime(w.clock.Now())
	for _, instance := range w.all() {
		w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Phase, s.StartedAt = instancev1alpha1.MacOSInstanceRunning, &at
		})
	}
	w.client.PrependReactor("delete", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), "ios-1-abcde", errors.New("stale"))
	})
	w.clock.Step(bootTimeout)
	for range 5 {
		w.step()
	}
	assert.Zero(t, w.failures.count)
}

func TestNoMacForADay(t *testing.T) {
	w := newWorld(t, "")
	w.source.jobs = 1
	w.step()
	lease := w.allLeases()[0]
	lease.Status.Conditions = []metav1.Condition{{
		Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonNoMacAvailable, Message: "all Macs are leased",
	}}
	_, err := w.client.RackV1alpha1().MacNodeLeases(namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	for range 24 {
		w.clock.Step(time.Hour)
		w.step()
	}
	require.Len(t, w.allLeases(), 1)
	assert.Equal(t, lease.UID, w.allLeases()[0].UID, "it keeps its place")
	w.eventsContain("Warning NoMac")
	w.bind()
	w.step()
	w.boot()
	w.step()
	assert.Len(t, w.busy(), 1)
}

// After a restart, the jobs that wait are unknown for a moment.
func TestAPendingLeaseOutlivesARestart(t *testing.T) {
	w := newWorld(t, "")
	w.source.jobs = 1
	w.step()
	require.Len(t, w.allLeases(), 1)
	w.source.jobs, w.source.unknown = 0, true
	w.Set = New(w.Environment, w.config, w.source, &floor.History{})
	w.step()
	require.Len(t, w.allLeases(), 1, "its job may still wait")
	w.eventsContain("the source of the jobs has not reported them yet")
	w.clock.Step(unknownTimeout)
	w.step()
	assert.Empty(t, w.allLeases(), "a source that is down keeps no lease for ever")
}

// The clock of the source can be fast.
func TestAJobThatEndsInTheFuture(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	observe.SetTime(instance, observe.AnnotationJobEndedAt, w.clock.Now().Add(24*time.Hour))
	w.source.jobs = 0
	w.ends(instance, 0)
	w.step()
	at := observe.Time(w.allLeases()[0], observe.AnnotationJobEndedAt)
	require.False(t, at.IsZero())
	assert.False(t, at.After(w.clock.Now()), "it would keep the lease")
}

// The deadline of a machine is fixed at its creation.
func TestALongerTimeoutReplacesMachines(t *testing.T) {
	for settings, replaced := range map[string]bool{", timeout: 48h": true, ", timeout: 1h": false} {
		w := newWorld(t, "")
		instance := w.run()
		w.Set = New(w.Environment, parse(t, settings, "gitlab: {}"), w.source, &floor.History{})
		before := names(w.all())
		w.step()
		w.step()
		assert.Equal(t, !replaced, assert.ObjectsAreEqual(before, names(w.all())), settings)
		assert.Contains(t, names(w.all()), instance.Name, "its job continues")
	}
}

// refuseLeases refuses all new leases, and returns the number of tries.
func (w *world) refuseLeases(cause string) (tries *int) {
	tries = new(int)
	w.client.PrependReactor("create", "macnodeleases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*tries++
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "ios-1", errors.New(cause))
	})
	return tries
}

func TestQuota(t *testing.T) {
	w := newWorld(t, "")
	tries := w.refuseLeases("exceeded quota: macs, limited: count/macnodeleases.rack.macrack.io=1")
	w.source.jobs = 1
	for range 59 {
		w.step()
	}
	assert.Equal(t, 1, *tries, "once a minute")
	w.step()
	w.step()
	assert.Equal(t, 2, *tries)
	w.eventsContain("QuotaExceeded")
}

func TestALeaseThatIsRefused(t *testing.T) {
	w := newWorld(t, "")
	tries := w.refuseLeases("no access")
	w.source.jobs = 1
	for range 59 {
		w.step()
	}
	assert.Equal(t, 1, *tries, "once a minute")
	w.eventsContain("Warning LeaseRefused")
}

func TestAnInstanceThatIsRefused(t *testing.T) {
	w := newWorld(t, "")
	tries, refused := 0, true
	w.client.PrependReactor("create", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		return refused, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "ios-1-abcde", errors.New("no such class"))
	})
	w.source.jobs = 1
	w.step()
	w.bind()
	for range 60 {
		w.step()
	}
	assert.Equal(t, 6, tries, "each ten seconds")
	w.eventsContain("Warning InstanceRefused")
	assert.Equal(t, "InstanceRefused", w.pausedBy())
	refused = false
	for range 11 {
		w.step()
	}
	require.Len(t, w.all(), 2)
	w.step()
	assert.Empty(t, w.pausedBy())
}

// A user can take the name of a lease.
func TestALeaseWhoseNameIsTaken(t *testing.T) {
	w := newWorld(t, "")
	tries := 0
	w.client.PrependReactor("create", "macnodeleases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		return true, nil, apierrors.NewAlreadyExists(action.GetResource().GroupResource(), "ios-1")
	})
	w.source.jobs = 1
	for range 59 {
		w.step()
	}
	assert.Equal(t, 1, tries, "once a minute")
	w.eventsContain("Warning LeaseRefused")
}

// A source may count a job until it learns of its end.
func TestAnEndWithoutAResult(t *testing.T) {
	w := newWorld(t, "")
	instance := w.run()
	w.source.result = func(*instancev1alpha1.MacOSInstance) Result { return "" }
	w.ends(instance, 0)
	w.step()
	assert.Equal(t, 1, w.source.capacity.Unreported, "before the set has noted the end")
	w.step()
	assert.Equal(t, 1, w.source.capacity.Unreported)
	w.clock.Step(resultTimeout)
	w.step()
	w.step()
	assert.Zero(t, w.source.capacity.Unreported)
}
