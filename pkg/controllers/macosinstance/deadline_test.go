package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// startedAgo sets the start of the virtual machine, before noon.
func startedAgo(ago time.Duration) change {
	return func(i *instancev1alpha1.MacOSInstance) {
		withMachine(i)
		running(i)
		i.Status.StartedAt = ptr.To(metav1.NewTime(noon.Add(-ago)))
		i.Status.StartGrantedAt = i.Status.StartedAt
	}
}

func endedAgo(ago time.Duration) change {
	return func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase = instancev1alpha1.MacOSInstanceStopped
		i.Status.StoppedAt = ptr.To(metav1.NewTime(noon.Add(-ago)))
	}
}

func withDeadline(seconds int64) change {
	return func(i *instancev1alpha1.MacOSInstance) { i.Spec.ActiveDeadlineSeconds = &seconds }
}

func keptFor(seconds int32) change {
	return func(i *instancev1alpha1.MacOSInstance) { i.Spec.TTLSecondsAfterFinished = &seconds }
}

func TestDeadline(t *testing.T) {
	pod := aPod("mac-1")
	for _, tt := range []scenario{
		{name: "no deadline", instance: anInstance(named, startedAgo(time.Hour)), pod: pod},
		{name: "before the deadline", instance: anInstance(named, startedAgo(time.Minute), withDeadline(90)), pod: pod, due: 30 * time.Second},
		{name: "at the deadline", instance: anInstance(named, startedAgo(time.Minute), withDeadline(60)), pod: pod, calls: []string{"stop DeadlineExceeded"}},
		{name: "the deadline is not measured from the creation", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled), withDeadline(1)), pod: pod},
		{
			name:     "a Mac with a slow clock does not shorten the deadline",
			instance: anInstance(named, startedAgo(time.Minute), withDeadline(60), func(i *instancev1alpha1.MacOSInstance) { i.Status.StartedAt = &metav1.Time{Time: time.Unix(0, 0)} }),
			pod:      pod, calls: []string{"stop DeadlineExceeded"},
		},
		{name: "it is stopping already", instance: anInstance(named, startedAgo(time.Hour), stopAsked, withDeadline(60)), pod: pod},
		{name: "it has ended", instance: anInstance(named, startedAgo(time.Hour), endedAgo(0), withDeadline(60))},
		{
			name: "the API refuses the stop", instance: anInstance(named, startedAgo(time.Hour), withDeadline(60)), pod: pod, fail: map[string]error{"stop": errBroken},
			calls: []string{"stop DeadlineExceeded"}, err: errBroken,
		},
		{
			name: "it is gone", instance: anInstance(named, startedAgo(time.Hour), withDeadline(60)), pod: pod,
			fail:  map[string]error{"stop": apierrors.NewNotFound(instancev1alpha1.Resource("macosinstances"), "vm-1")},
			calls: []string{"stop DeadlineExceeded"},
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestExpiry(t *testing.T) {
	for _, tt := range []scenario{
		{name: "kept until its lease ends", instance: anInstance(named, endedAgo(time.Hour))},
		{name: "not yet", instance: anInstance(named, endedAgo(time.Minute), keptFor(90)), due: 30 * time.Second},
		{name: "expired", instance: anInstance(named, endedAgo(time.Minute), keptFor(60)), calls: []string{"delete instance vm-1"}},
		{name: "at once, and its pod", instance: anInstance(named, endedAgo(0), keptFor(0)), pod: aPod("mac-1"), calls: []string{"delete vm-1-vm", "delete instance vm-1"}},
		{name: "running", instance: anInstance(named, startedAgo(time.Hour), keptFor(0)), pod: aPod("mac-1")},
		{name: "deleted already", instance: anInstance(named, endedAgo(time.Hour), keptFor(0), deleted), calls: []string{"finalizers "}},
		{
			name: "the API refuses", instance: anInstance(named, endedAgo(time.Hour), keptFor(0)), fail: map[string]error{"delete": errBroken},
			calls: []string{"delete instance vm-1"}, err: errBroken,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestEarliest(t *testing.T) {
	later := noon.Add(time.Second)
	assert.Zero(t, earliest(time.Time{}, time.Time{}))
	assert.Equal(t, noon.Time, earliest(time.Time{}, noon.Time))
	assert.Equal(t, noon.Time, earliest(noon.Time, time.Time{}))
	assert.Equal(t, noon.Time, earliest(noon.Time, later))
	assert.Equal(t, noon.Time, earliest(later, noon.Time))
}
