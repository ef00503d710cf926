package observe

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/machines"
)

// The state of a set is in these labels and annotations, and nowhere else.
const (
	// LabelSet is the label of leases and instances with the name of their set.
	LabelSet = "runners.macrack.io/set"
	// LabelJob is the label of an instance with the name of its job, as far as a label can have it.
	LabelJob = "runners.macrack.io/job"
	// AnnotationJob is the annotation of an instance with the name of its job.
	AnnotationJob = "runners.macrack.io/job"
	// AnnotationJobAssignedAt is the annotation of an instance with the time at which it got its
	// job.
	AnnotationJobAssignedAt = "runners.macrack.io/job-assigned-at"
	// AnnotationJobDeliveredAt is the annotation of an instance with the time at which its guest
	// received what the job needs.
	AnnotationJobDeliveredAt = "runners.macrack.io/job-delivered-at"
	// AnnotationJobStartedAt is the annotation of an instance with the time at which its job began
	// to run.
	AnnotationJobStartedAt = "runners.macrack.io/job-started-at"
	// AnnotationJobEndedAt is the annotation of an instance with the time at which its job ended,
	// and of a lease with that of its last job.
	AnnotationJobEndedAt = "runners.macrack.io/job-ended-at"
	// AnnotationJobResult is the annotation of an instance with the result of its job.
	AnnotationJobResult = "runners.macrack.io/job-result"
)

// Machine returns the facts about an instance.
func Machine(instance *instancev1alpha1.MacOSInstance) machines.Machine {
	m := machines.Machine{
		Name: instance.Name, Lease: instance.Spec.LeaseName, CreatedAt: instance.CreationTimestamp.Time, State: state(instance),
	}
	if m.State == machines.Busy {
		// A damaged annotation must not end the job at once.
		m.BusySince = Time(instance, AnnotationJobAssignedAt)
		if m.BusySince.IsZero() {
			m.BusySince = m.CreatedAt
		}
	}
	if m.State == machines.Booting {
		m.SilentSince = silentSince(instance)
		if stalled := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceStalled); stalled != nil && stalled.Status == metav1.ConditionTrue {
			m.Stalled = stalled.Reason
		}
	}
	return m
}

// silentSince returns the time since which the guest of a running virtual machine has not answered.
func silentSince(instance *instancev1alpha1.MacOSInstance) time.Time {
	if instance.Status.StartedAt == nil {
		return time.Time{}
	}
	since := instance.Status.StartedAt.Time
	if ready := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady); ready != nil && ready.LastTransitionTime.After(since) {
		since = ready.LastTransitionTime.Time
	}
	return since
}

func state(instance *instancev1alpha1.MacOSInstance) machines.State {
	_, busy := instance.Annotations[AnnotationJob]
	_, ended := instance.Annotations[AnnotationJobEndedAt]
	switch phase := instance.Status.Phase; {
	case instance.DeletionTimestamp != nil:
		return machines.Deleting
	case ended || instance.Status.Startup != nil:
		return machines.Done
	case phase == instancev1alpha1.MacOSInstanceStopping || phase == instancev1alpha1.MacOSInstanceStopped || phase == instancev1alpha1.MacOSInstanceFailed:
		return machines.Done
	case busy:
		return machines.Busy
	case meta.IsStatusConditionTrue(instance.Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady):
		return machines.Warm
	}
	return machines.Booting
}

// Assign gives a warm instance its job. The caller updates the instance with its resourceVersion,
// so that only one of two replicas succeeds.
func Assign(instance *instancev1alpha1.MacOSInstance, job string, now time.Time) error {
	if s := state(instance); s != machines.Warm {
		return fmt.Errorf("instance %q is %s; only a Warm instance takes a job", instance.Name, s)
	}
	SetJob(instance, job)
	SetTime(instance, AnnotationJobAssignedAt, now)
	return nil
}

// SetJob sets the name of the job of an instance.
func SetJob(instance *instancev1alpha1.MacOSInstance, job string) {
	metav1.SetMetaDataAnnotation(&instance.ObjectMeta, AnnotationJob, job)
	metav1.SetMetaDataLabel(&instance.ObjectMeta, LabelJob, labelValue(job))
}

// SetTime sets an annotation of a lease or an instance to a time.
func SetTime(object metav1.Object, annotation string, at time.Time) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotation] = at.UTC().Format(time.RFC3339Nano)
	object.SetAnnotations(annotations)
}

// notInLabel are the characters that a label cannot have.
var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// labelValue returns the part of a text that a label can have.
func labelValue(text string) string {
	text = notInLabel.ReplaceAllString(text, "-")
	if len(text) > validation.LabelValueMaxLength {
		text = text[:validation.LabelValueMaxLength]
	}
	return strings.Trim(text, "._-")
}

// Time returns the time in an annotation; zero if it is missing or damaged.
func Time(object metav1.Object, annotation string) time.Time {
	at, err := time.Parse(time.RFC3339, object.GetAnnotations()[annotation])
	if err != nil {
		return time.Time{}
	}
	return at
}
