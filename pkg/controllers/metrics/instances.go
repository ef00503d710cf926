package metrics

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/macosinstance"
)

var instancePhases = []string{
	string(instancev1alpha1.MacOSInstancePending),
	string(instancev1alpha1.MacOSInstanceScheduled),
	string(instancev1alpha1.MacOSInstancePulling),
	string(instancev1alpha1.MacOSInstanceStarting),
	string(instancev1alpha1.MacOSInstanceRunning),
	string(instancev1alpha1.MacOSInstanceStopping),
	string(instancev1alpha1.MacOSInstanceStopped),
	string(instancev1alpha1.MacOSInstanceFailed),
}

// waitingReasons are the reasons of the conditions Scheduled, ImageReady and EnvironmentReady, and
// phases without a condition that explains them.
var waitingReasons = []string{
	notReported,
	macosinstance.ReasonWaitingForNode,
	macosinstance.ReasonCreatingPod,
	macosinstance.ReasonPodNameTaken,
	macosinstance.ReasonPodRefused,
	macosinstance.ReasonWaitingForScheduler,
	macosinstance.ReasonUnschedulable,
	macosinstance.ReasonMacQuarantined,
	string(instancev1alpha1.MacOSInstanceScheduled),
	instancev1alpha1.ReasonPulling,
	instancev1alpha1.ReasonPullFailed,
	instancev1alpha1.ReasonImageNotFound,
	instancev1alpha1.ReasonPullUnauthorized,
	instancev1alpha1.ReasonInsufficientStorage,
	instancev1alpha1.ReasonSecretNotFound,
	instancev1alpha1.ReasonConfigMapNotFound,
	instancev1alpha1.ReasonEnvironmentInvalid,
	instancev1alpha1.ReasonEnvironmentUnreadable,
	string(instancev1alpha1.MacOSInstanceStarting),
	other,
}

// collectInstances counts the instances, and the reasons for which they do not run yet.
func (f *fleet) collectInstances(send sender) {
	byPhase, byReason, since := map[string]int{}, map[string]int{}, oldest[string]{}
	for _, instance := range f.instances {
		phase := instance.Status.Phase
		if phase == "" {
			phase = instancev1alpha1.MacOSInstancePending
		}
		byPhase[string(phase)]++
		if reason := waitingReason(instance); reason != "" {
			byReason[reason]++
			since.add(reason, instance.CreationTimestamp.Time)
		}
	}
	for _, phase := range instancePhases {
		send.gauge(instances, float64(byPhase[phase]), phase)
	}
	for _, reason := range waitingReasons {
		send.gauge(instancesWaiting, float64(byReason[reason]), reason)
	}
	for reason, t := range since {
		send.time(instanceWaitingOldest, t, reason)
	}
}

// waitingReason returns the reason for which an instance does not run yet, or an empty string if it
// runs, or does not wait to run.
func waitingReason(instance *instancev1alpha1.MacOSInstance) string {
	reasonOf := func(condition, fallback string) string {
		c := meta.FindStatusCondition(instance.Status.Conditions, condition)
		if c == nil || c.Status == "True" || c.Reason == "" {
			return fallback
		}
		return known(waitingReasons, c.Reason)
	}
	switch phase := instance.Status.Phase; phase {
	case "", instancev1alpha1.MacOSInstancePending:
		return reasonOf(instancev1alpha1.MacOSInstanceScheduledCondition, notReported)
	case instancev1alpha1.MacOSInstanceScheduled, instancev1alpha1.MacOSInstancePulling:
		fallback := string(phase)
		if c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceEnvironmentReady); c != nil && slices.Contains(waitingReasons, c.Reason) {
			fallback = c.Reason
		}
		return reasonOf(instancev1alpha1.MacOSInstanceImageReady, fallback)
	case instancev1alpha1.MacOSInstanceStarting:
		return string(phase)
	}
	return ""
}
