package macosinstance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// Reasons of the condition Scheduled.
const (
	// ReasonWaitingForNode means that the Node does not exist, or does not have the tenant's taint
	// yet.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonCreatingPod means that the placeholder pod is about to be created.
	ReasonCreatingPod = "CreatingPod"
	// ReasonPodNameTaken means that a pod of another owner has the name of the placeholder pod,
	// which is about to be created under another name.
	ReasonPodNameTaken = "PodNameTaken"
	// ReasonPodRefused means that the API server refuses the placeholder pod, for example because
	// of a quota.
	ReasonPodRefused = "PodRefused"
	// ReasonWaitingForScheduler means that the scheduler has not looked at the placeholder pod yet.
	ReasonWaitingForScheduler = "WaitingForScheduler"
	// ReasonUnschedulable means that the scheduler finds the Node unfit for the placeholder pod.
	ReasonUnschedulable = "Unschedulable"
	// ReasonMacQuarantined means that the scheduler finds the Node unfit because its Mac is in
	// quarantine.
	ReasonMacQuarantined = "MacQuarantined"
	// ReasonScheduled means that the placeholder pod is bound to the Node.
	ReasonScheduled = "Scheduled"
)

// staleFor is the time after a quarantine within which the scheduler has retried the placeholder
// pod: its limit of 5 minutes for an unschedulable pod, its interval of 30 seconds, and a backoff.
const staleFor = 6 * time.Minute

// Beginnings of messages of the condition Scheduled, which end with the scheduler's message.
const (
	schedulerReports = "; the scheduler reports: "
	quarantineEnded  = "the quarantine of the Mac has ended; before that, the scheduler reported: "
)

// syncScheduled shows the scheduling result of the pod on the instance. It returns the time at
// which the result expires, if any.
func (r *reconciler) syncScheduled(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (due time.Time, err error) {
	switch pod.Spec.NodeName {
	case "":
		return r.syncUnscheduled(ctx, instance, pod)
	case instance.Status.NodeName:
		_, err = r.setScheduled(ctx, instance, ReasonScheduled, "")
	default:
		_, err = r.setScheduled(ctx, instance, ReasonUnschedulable, fmt.Sprintf("placeholder pod bound to Node %s instead of %s", pod.Spec.NodeName, instance.Status.NodeName))
	}
	return time.Time{}, err
}

// syncUnscheduled shows why the scheduler has not bound the pod. A wait for the end of a quarantine
// is not a rejection: what keeps the pod away is a Mac that cannot empty its slots, not a rule.
func (r *reconciler) syncUnscheduled(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (due time.Time, err error) {
	reason, message := ReasonWaitingForScheduler, "waiting for the scheduler to bind the placeholder pod"
	if c := podScheduled(pod); c != nil && c.Status == corev1.ConditionFalse {
		mac, err := r.macs.Get(instance.Status.NodeName)
		if shared.IgnoreNotFound(err) != nil {
			return time.Time{}, err
		}
		quarantined := err == nil && mac.Status.Quarantine != nil
		refused, err := r.refusesTenant(instance)
		if err != nil {
			return time.Time{}, err
		}
		stale, until := r.isFromQuarantine(instance, c.Message)
		switch {
		case quarantined && !refused:
			reason = ReasonMacQuarantined
			message = fmt.Sprintf("waiting for the end of the quarantine (%s) of Mac %s", mac.Status.Quarantine.Reason, mac.Spec.SerialNumber) + schedulerReports + c.Message
		case stale && !refused:
			message, due = quarantineEnded+c.Message, until
		default:
			if err := r.recordRejection(ctx, instance, c.Message); err != nil {
				return time.Time{}, err
			}
			reason, message = ReasonUnschedulable, r.whyUnschedulable(ctx, instance, pod, c.Message)
		}
	}
	_, err = r.setScheduled(ctx, instance, reason, message)
	return due, err
}

// isFromQuarantine reports whether the scheduler's message may be from a quarantine of the Mac, and
// until when. An equal message does not show whether the scheduler has retried the placeholder pod
// since. The time is zero while the condition MacReady does not show that the Mac is available.
func (r *reconciler) isFromQuarantine(instance *instancev1alpha1.MacOSInstance, message string) (stale bool, until time.Time) {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	if c == nil {
		return false, time.Time{}
	}
	switch c.Reason {
	case ReasonMacQuarantined:
		quarantine, _, _ := strings.Cut(c.Message, schedulerReports)
		stale = c.Message == apiclient.Message(quarantine+schedulerReports+message)
	case ReasonWaitingForScheduler:
		stale = c.Message == apiclient.Message(quarantineEnded+message)
	}
	macReady := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceMacReady)
	if !stale || macReady == nil || macReady.Status != metav1.ConditionTrue {
		return stale, time.Time{}
	}
	until = macReady.LastTransitionTime.Add(staleFor)
	return r.clock.Now().Before(until), until
}

// whyUnschedulable names the taints of the Node that the pod does not tolerate. The scheduler only
// counts Nodes, which does not help the tenant of a pod that fits one Node.
func (r *reconciler) whyUnschedulable(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, message string) string {
	node, err := r.nodes.Get(instance.Status.NodeName)
	if err != nil {
		return message
	}
	var keeping []corev1.Taint
	for _, taint := range node.Spec.Taints {
		tolerated := taint.Effect == corev1.TaintEffectPreferNoSchedule || slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.FromContext(ctx), &taint, false)
		})
		if !tolerated {
			keeping = append(keeping, taint)
		}
	}
	if len(keeping) == 0 {
		return message
	}
	return fmt.Sprintf("Node %s is tainted %s, so the placeholder pod waits; the scheduler reports: %s", node.Name, strings.Join(rules.FormatTaints(keeping), ", "), message)
}

func podScheduled(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodScheduled {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// setScheduled writes the condition Scheduled if it has changed, and returns the updated instance.
func (r *reconciler) setScheduled(ctx context.Context, before *instancev1alpha1.MacOSInstance, reason, message string) (*instancev1alpha1.MacOSInstance, error) {
	return r.setScheduledAs(ctx, before, before.Status.PodName, reason, message)
}

// setScheduledAs is setScheduled, and also sets the name of the placeholder pod. For a new
// instance, it also sets the condition MacReady, so that a start needs one write less.
func (r *reconciler) setScheduledAs(ctx context.Context, before *instancev1alpha1.MacOSInstance, podName, reason, message string) (*instancev1alpha1.MacOSInstance, error) {
	message = apiclient.Message(message)
	if isRestored(before) && reason != ReasonScheduled {
		reason = instancev1alpha1.ReasonRestored
	}
	instance := before.DeepCopy()
	instance.Status.PodName = podName
	condition := metav1.Condition{
		Type:               instancev1alpha1.MacOSInstanceScheduledCondition,
		Status:             metav1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: instance.Generation,
		LastTransitionTime: metav1.NewTime(r.clock.Now()),
	}
	switch reason {
	case ReasonScheduled:
		condition.Status = metav1.ConditionTrue
		if instance.Status.Phase == instancev1alpha1.MacOSInstancePending {
			instance.Status.Phase = instancev1alpha1.MacOSInstanceScheduled
			instance.Status.Message = ""
		}
	default:
		instance.Status.Message = message
	}
	meta.SetStatusCondition(&instance.Status.Conditions, condition)
	if isNew(before) {
		if _, err := r.setMacReady(instance); err != nil {
			return nil, err
		}
	}
	if equality.Semantic.DeepEqual(before.Status, instance.Status) {
		return before, nil
	}
	return shared.PatchStatus(ctx, r.instanceClient.MacOSInstances(before.Namespace), before, instance)
}
