package metrics

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
)

var (
	bindDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "macrack",
		Subsystem:      "lease",
		Name:           "bind_duration_seconds",
		Help:           "Time from the creation of a lease to its binding to a Mac.",
		Buckets:        []float64{1, 2, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 48 * 3600},
		StabilityLevel: metrics.ALPHA,
	})

	startDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "macrack",
		Subsystem:      "instance",
		Name:           "start_duration_seconds",
		Help:           "Time from the creation of an instance to phase Running, including the pull of its image.",
		Buckets:        []float64{0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600},
		StabilityLevel: metrics.ALPHA,
	})

	pullDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "macrack",
		Subsystem:      "instance",
		Name:           "image_pull_duration_seconds",
		Help:           "Time for which an instance waited for the pull of its image, including failed attempts. Images that were on the Mac do not count.",
		Buckets:        []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		StabilityLevel: metrics.ALPHA,
	})
)

func init() {
	legacyregistry.MustRegister(bindDuration, startDuration, pullDuration)
}

// observeDurations makes the leader observe the changes of leases and instances. Objects that an
// informer finds at its start are not changes.
func (c *Collector) observeDurations() {
	_, _ = c.deps.MacNodeLeases.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeLease) {
		if before == nil || after == nil || !c.leading.Load() {
			return
		}
		if before.Status.BoundAt == nil && after.Status.BoundAt != nil {
			bindDuration.Observe(c.since(after.CreationTimestamp))
		}
	}))
	_, _ = c.deps.MacOSInstances.Informer().AddEventHandler(controller.Handlers(func(before, after *instancev1alpha1.MacOSInstance) {
		if before == nil || after == nil || !c.leading.Load() {
			return
		}
		if waitingReason(before) != "" && after.Status.Phase == instancev1alpha1.MacOSInstanceRunning {
			startDuration.Observe(c.since(after.CreationTimestamp))
		}
		if waited, pulled := pullTime(before, after); pulled {
			pullDuration.Observe(waited.Seconds())
		}
	}))
}

func (c *Collector) since(t metav1.Time) float64 { return max(c.deps.Clock.Since(t.Time).Seconds(), 0) }

// pullTime returns the time between two transitions of the condition ImageReady, if a pull has
// ended. The Mac has written both, so its clock does not matter.
func pullTime(before, after *instancev1alpha1.MacOSInstance) (waited time.Duration, pulled bool) {
	waiting := meta.FindStatusCondition(before.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	ready := meta.FindStatusCondition(after.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	if waiting == nil || waiting.Status != metav1.ConditionFalse || ready == nil || ready.Status != metav1.ConditionTrue {
		return 0, false
	}
	return max(ready.LastTransitionTime.Sub(waiting.LastTransitionTime.Time), 0), true
}
