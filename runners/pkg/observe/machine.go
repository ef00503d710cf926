package observe

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/machines"
)

// The state of a set is in these labels and annotations, and nowhere else.
const (
	// LabelSet is the label of leases and instances with the name of their set.
	LabelSet = "runners.macrack.io/set"
	// AnnotationJob is the annotation of an instance with the name of its job.
	AnnotationJob = "runners.macrack.io/job"
	// AnnotationJobAssignedAt is the annotation of an instance with the time at which it got its
	// job.
	AnnotationJobAssignedAt = "runners.macrack.io/job-assigned-at"
	// AnnotationJobEndedAt is the annotation of an instance with the time at which its job ended,
	// and of a lease with that of its last job.
	AnnotationJobEndedAt = "runners.macrack.io/job-ended-at"
)

// Machine returns the facts about an instance.
func Machine(instance *instancev1alpha1.MacOSInstance) machines.Machine {
	m := machines.Machine{
		Name: instance.Name, Lease: instance.Spec.LeaseName, ImageName: instance.Spec.ImageName,
		CreatedAt: instance.CreationTimestamp.Time, State: state(instance),
	}
	if m.State == machines.Busy {
		// A damaged annotation must not end the job at once.
		m.BusySince = annotatedTime(instance, AnnotationJobAssignedAt)
		if m.BusySince.IsZero() {
			m.BusySince = m.CreatedAt
		}
	}
	return m
}

func state(instance *instancev1alpha1.MacOSInstance) machines.State {
	_, busy := instance.Annotations[AnnotationJob]
	_, ended := instance.Annotations[AnnotationJobEndedAt]
	switch phase := instance.Status.Phase; {
	case instance.DeletionTimestamp != nil:
		return machines.Deleting
	case ended || phase == instancev1alpha1.MacOSInstanceStopped || phase == instancev1alpha1.MacOSInstanceFailed:
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
	metav1.SetMetaDataAnnotation(&instance.ObjectMeta, AnnotationJob, job)
	metav1.SetMetaDataAnnotation(&instance.ObjectMeta, AnnotationJobAssignedAt, now.UTC().Format(time.RFC3339))
	return nil
}

// annotatedTime returns the time in an annotation; zero if it is missing or damaged.
func annotatedTime(object metav1.Object, annotation string) time.Time {
	at, err := time.Parse(time.RFC3339, object.GetAnnotations()[annotation])
	if err != nil {
		return time.Time{}
	}
	return at
}
