package macosinstance

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// describe returns the Event for a change of the instance. The reason is empty if the change does
// not matter to the tenant. The agent emits the Events about images.
func describe(before, after *instancev1alpha1.MacOSInstance) (eventType, reason, message string) {
	if before == nil || after == nil || before.UID != after.UID {
		return "", "", ""
	}
	if before.Status.Phase == after.Status.Phase {
		return describeScheduling(before, after)
	}
	status := after.Status
	switch status.Phase {
	case instancev1alpha1.MacOSInstanceScheduled:
		return corev1.EventTypeNormal, "Scheduled", fmt.Sprintf("placeholder pod %s bound to Node %s", status.PodName, status.NodeName)
	case instancev1alpha1.MacOSInstanceRunning:
		return corev1.EventTypeNormal, "Started", fmt.Sprintf("virtual machine started on Mac %s", status.SerialNumber)
	case instancev1alpha1.MacOSInstanceStopping:
		if seconds := after.Spec.ActiveDeadlineSeconds; status.StopRequest != nil && rules.StoppedByDeadline(seconds, status.StopRequest.Reason) {
			return corev1.EventTypeWarning, rules.ReasonDeadlineExceeded, rules.DescribeDeadline(*seconds)
		}
		return corev1.EventTypeNormal, "Stopping", describeStop(after)
	case instancev1alpha1.MacOSInstanceStopped:
		return corev1.EventTypeNormal, "Stopped", cmp.Or(status.Message, describeStop(after))
	case instancev1alpha1.MacOSInstanceFailed:
		return corev1.EventTypeWarning, "Failed", cmp.Or(status.Message, "virtual machine failed")
	}
	return "", "", ""
}

func describeStop(instance *instancev1alpha1.MacOSInstance) string {
	request := instance.Status.StopRequest
	if request == nil {
		return "virtual machine stopping"
	}
	return fmt.Sprintf("stop requested by %s (%s)", cmp.Or(request.By, "an unknown user"), cmp.Or(request.Reason, "no reason given"))
}

func describeScheduling(before, after *instancev1alpha1.MacOSInstance) (eventType, reason, message string) {
	oldScheduled := meta.FindStatusCondition(before.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	newScheduled := meta.FindStatusCondition(after.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	if newScheduled == nil || oldScheduled != nil && oldScheduled.Reason == newScheduled.Reason && oldScheduled.Message == newScheduled.Message {
		return "", "", ""
	}
	switch newScheduled.Reason {
	case ReasonPodNameTaken, ReasonPodRefused, ReasonUnschedulable:
		return corev1.EventTypeWarning, newScheduled.Reason, newScheduled.Message
	case ReasonWaitingForNode, ReasonMacQuarantined:
		return corev1.EventTypeNormal, newScheduled.Reason, newScheduled.Message
	}
	return "", "", ""
}
