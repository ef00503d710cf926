package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// waitingForEnvironment is the kubelet's reason for a container whose Secret does not exist.
const waitingForEnvironment = "CreateContainerConfigError"

func waitsForEnvironment(instance *instancev1alpha1.MacOSInstance) bool {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceEnvironmentReady)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason != instancev1alpha1.ReasonEnvironmentPending
}

// statusOf returns the status of the placeholder pod of an instance.
func statusOf(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: pod.Status.StartTime, Message: instance.Status.Message}
	if status.StartTime == nil {
		start := pod.CreationTimestamp
		status.StartTime = &start
	}
	started := instance.Status.StartedAt
	var state corev1.ContainerState
	ready, reason := corev1.ConditionFalse, string(instance.Status.Phase)
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstanceRunning, instancev1alpha1.MacOSInstanceStopping:
		if started == nil {
			state.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: instance.Status.Message}
			break
		}
		status.Phase = corev1.PodRunning
		state.Running = &corev1.ContainerStateRunning{StartedAt: *started}
		if instance.Status.Phase == instancev1alpha1.MacOSInstanceRunning {
			ready, reason = corev1.ConditionTrue, ""
		}
	case instancev1alpha1.MacOSInstanceStopped, instancev1alpha1.MacOSInstanceFailed:
		status.Phase, status.Reason = corev1.PodSucceeded, reason
		exit := int32(0)
		if instance.Status.Phase == instancev1alpha1.MacOSInstanceFailed {
			status.Phase, exit = corev1.PodFailed, 1
		}
		state.Terminated = &corev1.ContainerStateTerminated{ExitCode: exit, Reason: reason, Message: instance.Status.Message}
		if started != nil {
			state.Terminated.StartedAt = *started
		}
		if instance.Status.StoppedAt != nil {
			state.Terminated.FinishedAt = *instance.Status.StoppedAt
		}
	default:
		if waitsForEnvironment(instance) {
			reason = waitingForEnvironment
		}
		state.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: instance.Status.Message}
	}
	condition := func(t corev1.PodConditionType, value corev1.ConditionStatus) corev1.PodCondition {
		c := corev1.PodCondition{Type: t, Status: value, LastTransitionTime: *status.StartTime}
		if value == corev1.ConditionFalse {
			c.Reason = reason
		}
		if t != corev1.PodScheduled && started != nil {
			c.LastTransitionTime = *started
		}
		return c
	}
	status.Conditions = []corev1.PodCondition{
		condition(corev1.PodScheduled, corev1.ConditionTrue), condition(corev1.PodInitialized, corev1.ConditionTrue),
		condition(corev1.ContainersReady, ready), condition(corev1.PodReady, ready),
	}
	isStarted := state.Running != nil
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: instance.Status.ImageDigest,
			State: state, Ready: ready == corev1.ConditionTrue, Started: &isStarted,
		})
	}
	return status
}
