package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/machines"
)

// instance returns a running instance whose guest is ready.
func instance(changes ...func(*instancev1alpha1.MacOSInstance)) *instancev1alpha1.MacOSInstance {
	i := &instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: metav1.Time{Time: boundAt}}}
	i.Spec.LeaseName = "a"
	i.Status.Phase = instancev1alpha1.MacOSInstanceRunning
	i.Status.Conditions = []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceGuestReady, Status: metav1.ConditionTrue}}
	for _, change := range changes {
		change(i)
	}
	return i
}

func annotated(annotation, value string) func(*instancev1alpha1.MacOSInstance) {
	return func(i *instancev1alpha1.MacOSInstance) {
		metav1.SetMetaDataAnnotation(&i.ObjectMeta, annotation, value)
	}
}

func phase(p instancev1alpha1.MacOSInstancePhase) func(*instancev1alpha1.MacOSInstance) {
	return func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = p }
}

func booting(i *instancev1alpha1.MacOSInstance) {
	i.Status.Conditions[0].Status = metav1.ConditionFalse
}

func deletedInstance(i *instancev1alpha1.MacOSInstance) {
	i.DeletionTimestamp = &metav1.Time{Time: jobEnd}
}

func TestMachine(t *testing.T) {
	withJob, at := annotated(AnnotationJob, "j"), annotated(AnnotationJobAssignedAt, jobEnd.Format(time.RFC3339))
	ended := annotated(AnnotationJobEndedAt, jobEnd.Format(time.RFC3339))
	for _, test := range []struct {
		name      string
		instance  *instancev1alpha1.MacOSInstance
		want      machines.State
		busySince time.Time
	}{
		{"the guest boots", instance(booting), machines.Booting, time.Time{}},
		{"the guest is ready", instance(), machines.Warm, time.Time{}},
		{"it has a job", instance(withJob, at), machines.Busy, jobEnd},
		{"it has a job, and its guest does not answer", instance(withJob, at, booting), machines.Busy, jobEnd},
		{"the time of the job is damaged", instance(withJob, annotated(AnnotationJobAssignedAt, "?")), machines.Busy, boundAt},
		{"its job has ended", instance(withJob, at, ended), machines.Done, time.Time{}},
		{"its machine has stopped", instance(withJob, at, phase(instancev1alpha1.MacOSInstanceStopped)), machines.Done, time.Time{}},
		{"its machine has failed", instance(phase(instancev1alpha1.MacOSInstanceFailed)), machines.Done, time.Time{}},
		{"it was deleted", instance(withJob, at, deletedInstance), machines.Deleting, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, machines.Machine{
				Name: "m", Lease: "a", CreatedAt: boundAt, State: test.want, BusySince: test.busySince,
			}, Machine(test.instance))
		})
	}
}

func TestAStalledMachine(t *testing.T) {
	stalled := func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Conditions = append(i.Status.Conditions, metav1.Condition{
			Type: instancev1alpha1.MacOSInstanceStalled, Status: metav1.ConditionTrue, Reason: instancev1alpha1.ReasonImageNotFound,
		})
	}
	assert.Equal(t, "ImageNotFound", Machine(instance(booting, stalled)).Stalled)
	assert.Empty(t, Machine(instance(booting)).Stalled)
	assert.Empty(t, Machine(instance(stalled)).Stalled, "it is ready")
}

func TestAssign(t *testing.T) {
	i := instance()
	require.NoError(t, Assign(i, "j", jobEnd))
	got := Machine(i)
	assert.Equal(t, machines.Busy, got.State)
	assert.Equal(t, jobEnd, got.BusySince)
	assert.ErrorContains(t, Assign(i, "k", jobEnd), "is Busy; only a Warm instance takes a job")
	assert.Equal(t, "j", i.Annotations[AnnotationJob])
}
