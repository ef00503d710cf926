package instance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/teardown"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

// reporter reports instances and their ends.
type reporter struct {
	*Config
	histories *startHistories
}

// reportEnd reports a terminal phase and sets the pod's terminal status at once: the instance may
// be deleted before its change arrives as an event.
func (r *reporter) reportEnd(ctx context.Context, instance *instancev1alpha1.MacOSInstance, phase instancev1alpha1.MacOSInstancePhase, message string) error {
	ended, err := r.reportTerminalPhase(ctx, instance, phase, message)
	if err != nil {
		return err
	}
	pod, err := r.Pods.Placeholder(ended)
	if err != nil {
		return err
	}
	return r.Pods.Report(ctx, ended, pod)
}

// reportTerminalPhase reports a terminal phase. The slot is erased afterwards. If the agent exits
// in between, the next agent finds the terminal phase and the slot, and erases the slot.
func (r *reporter) reportTerminalPhase(ctx context.Context, instance *instancev1alpha1.MacOSInstance, phase instancev1alpha1.MacOSInstancePhase, message string) (*instancev1alpha1.MacOSInstance, error) {
	if teardown.StoppedByDeadline(instance) {
		phase = instancev1alpha1.MacOSInstanceFailed // as of a Job
	}
	ended, err := r.Instances.Update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.Message, s.IPAddress = phase, message, nil
		if s.StartedAt != nil && s.StoppedAt == nil {
			now := objects.Now(r.Clock)
			s.StoppedAt = &now
		}
		if meta.FindStatusCondition(s.Conditions, instancev1alpha1.MacOSInstanceGuestReady) != nil {
			r.Instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, string(phase), message)
		}
	})
	if err != nil {
		return nil, err
	}
	klog.InfoS("VM ended", "instance", klog.KObj(instance), "phase", phase, "message", message)
	slot, held := r.Slots.Find(string(instance.UID))
	return ended, r.cleanup(ctx, ended, slot, held)
}

// refuse fails an instance and its pod, and records the rejection. The record comes first: while
// the ledger is unavailable, the refusal is retried.
func (r *reporter) refuse(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, reason, message string) error {
	if err := r.Rejections.Record(ctx, rackv1alpha1.LayerAgent, pod.Namespace, rejections.Reference(instance), reason, message); rejections.IsTransient(err) {
		return err
	}
	if _, err := r.reportTerminalPhase(ctx, instance, instancev1alpha1.MacOSInstanceFailed, reason+": "+message); err != nil {
		return err
	}
	r.Pods.Fail(pod, reason, message)
	return nil
}

// cleanup removes the remains of an instance that has ended.
func (r *reporter) cleanup(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, held bool) error {
	r.histories.forget(instance.UID)
	if !held {
		return nil
	}
	switch slot.Phase {
	case slots.Attached, slots.Unreachable:
		return r.Stopper.Stop(ctx, slot, rules.DefaultStopGrace)
	case slots.Exited, slots.Prepared:
		return r.Stopper.Erase(slot)
	}
	return nil
}

// running reports the state of the running virtual machine.
func (r *reporter) running(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	vm, phase := slot.State, instancev1alpha1.MacOSInstanceRunning
	switch vm.VM {
	case contract.VMRunning:
	case contract.VMStarting:
		phase = instancev1alpha1.MacOSInstanceStarting
	default: // it ends by itself; its result has the reason
		return r.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) { s.IPAddress = nil })
	}
	if phase == instancev1alpha1.MacOSInstanceRunning && instance.Status.Phase != phase {
		r.histories.forget(instance.UID)
		klog.InfoS("VM running", "instance", klog.KObj(instance), "slot", slot.Slot)
	}
	return r.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.Message = phase, ""
		if vm.StartedAt != nil && s.StartedAt == nil {
			s.StartedAt = &metav1.Time{Time: vm.StartedAt.Truncate(time.Second)}
		}
		s.IPAddress = nil
		if address := vm.Address; address != nil { // the runner refreshes it only at intervals
			s.IPAddress = &instancev1alpha1.IPAddress{
				Value: address.Value, Source: string(address.Source),
				ObservedAt: &metav1.Time{Time: address.ObservedAt.Truncate(time.Second)},
			}
		}
		if script := vm.StartupScript; script != nil && s.Startup == nil {
			s.Startup = &instancev1alpha1.StartupResult{
				ExitCode: script.ExitCode, Output: script.OutputTail, FinishedAt: &metav1.Time{Time: script.EndedAt.Truncate(time.Second)},
			}
		}
		switch {
		case vm.GuestReady:
			r.Instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionTrue, "GuestAgentAnswers", "")
		case vm.GuestSeen:
			r.Instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, "GuestSilent", "the guest agent no longer responds")
		default:
			r.Instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, "GuestBoots", "the guest agent has not responded yet")
		}
	})
}

// update writes the status if change modifies it.
func (r *reporter) update(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) error {
	_, err := r.Instances.Update(ctx, instance, change)
	return err
}
