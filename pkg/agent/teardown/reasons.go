package teardown

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Requested reports whether the tenant or a controller wants the instance to stop, and returns the
// grace period.
func Requested(instance *instancev1alpha1.MacOSInstance) (bool, time.Duration) {
	if request := instance.Status.StopRequest; request != nil {
		return true, time.Duration(request.GracePeriodSeconds) * time.Second
	}
	return instance.DeletionTimestamp != nil || instance.Status.Phase == instancev1alpha1.MacOSInstanceStopping, rules.DefaultStopGrace
}

// StoppedByDeadline reports whether the instance was requested to stop because of its deadline.
func StoppedByDeadline(instance *instancev1alpha1.MacOSInstance) bool {
	request := instance.Status.StopRequest
	return request != nil && rules.StoppedByDeadline(instance.Spec.ActiveDeadlineSeconds, request.Reason)
}

// StopRequired reports whether the cached objects require an instance's virtual machine to stop,
// and returns the grace period.
func StopRequired(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (bool, time.Duration) {
	if stop, grace := Requested(instance); stop {
		return true, grace
	}
	if pod != nil && pod.DeletionTimestamp != nil && !Restored(instance) {
		return true, GracePeriod(pod)
	}
	return rules.InstanceEnded(instance.Status.Phase), rules.DefaultStopGrace
}

// Restored reports whether the instance was restored and has no new placeholder pod yet. The
// garbage collector may have deleted the one from before the loss.
func Restored(instance *instancev1alpha1.MacOSInstance) bool {
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	return condition != nil && condition.Reason == instancev1alpha1.ReasonRestored
}

// GracePeriod returns the grace period of a pod that is being deleted.
func GracePeriod(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return rules.DefaultStopGrace
	}
	return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
}

// LeaseMismatch returns the reason for which the Mac does not match the instance's lease, or an
// empty string if it matches.
func LeaseMismatch(macNode *rackv1alpha1.MacNode, instance *instancev1alpha1.MacOSInstance) string {
	lease := macNode.Status.LeaseRef
	switch {
	case lease == nil:
		return fmt.Sprintf("MacNode %s is not leased", macNode.Name)
	case lease.Namespace != instance.Namespace:
		return fmt.Sprintf("MacNode %s is leased to another tenant", macNode.Name)
	case !rules.BelongsToLease(instance, instance.Spec.LeaseName, rules.LeaseID{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}):
		return fmt.Sprintf("MacNode %s belongs to lease %s (UID %s); the instance belongs to another lease named %s", macNode.Name, lease.Name, lease.UID, instance.Spec.LeaseName)
	case macNode.Status.ReleasingSince != nil:
		return fmt.Sprintf("MacNode %s is being released", macNode.Name)
	}
	return ""
}

// Mismatch returns the reason for which the virtual machine in a slot does not match the instance,
// or an empty string if it matches. The instance may be nil.
func (s *Stopper) Mismatch(instance *instancev1alpha1.MacOSInstance, slot slots.Status) string {
	if instance == nil || string(instance.UID) != slot.UID() || !s.Instances.Here(instance) {
		return rejections.ReasonUnknownInstance
	}
	if of, ok := s.Slots.Find(slot.UID()); ok && of.Slot != slot.Slot {
		return rejections.ReasonDuplicateIdentity
	}
	differs := func(api, here string) bool { return api != "" && api != here }
	if differs(instance.Status.MachineID, slot.Spec.MachineID) || differs(instance.Status.MACAddress, slot.Spec.MACAddress) {
		return rejections.ReasonForeignIdentity
	}
	return ""
}
