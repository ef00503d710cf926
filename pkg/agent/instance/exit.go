package instance

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

// onExit reports a virtual machine that has exited: its runner is gone and the slot's lock is free.
func (c *Controller) onExit(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, stop bool, why string) error {
	result := slot.Result
	if result.StartedAt != nil && instance.Status.StartedAt == nil {
		// The VM ran without an agent: the ledger needs its start before its end.
		var err error
		if instance, err = c.Instances.Update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.StartedAt = &metav1.Time{Time: result.StartedAt.Truncate(time.Second)}
		}); err != nil {
			return err
		}
	}
	if result.Reason == contract.ExitStartFailed && contract.IsLimitExceeded(result.Error) && !stop {
		return c.relauncher.kernelRefused(ctx, instance, slot)
	}
	if result.Reason == contract.ExitStartFailed && contract.IsKeychainLocked(result.Error) && !stop {
		return c.relauncher.keychainLocked(ctx, instance, slot)
	}
	phase, message := instancev1alpha1.MacOSInstanceFailed, ""
	switch result.Reason {
	case contract.ExitStopped, contract.ExitStoppedByForce, contract.ExitKilled:
		message = "The virtual machine was stopped on the Mac, without a request from the cluster"
	case contract.ExitGuestShutdown:
		phase, message = instancev1alpha1.MacOSInstanceStopped, "The guest shut itself down"
	case contract.ExitCrashed:
		message = fmt.Sprintf("The virtual machine crashed: %v", result.Error)
	case contract.ExitStartFailed:
		message = fmt.Sprintf("The virtual machine did not start: %v", result.Error)
	case contract.ExitVanished:
		message = "The virtual machine's process was killed, or the Mac lost power"
		if result.Error != nil {
			message = "The virtual machine ended for an unknown reason: " + result.Error.Message
		}
	}
	if stop {
		phase = instancev1alpha1.MacOSInstanceStopped
		switch result.Reason {
		case contract.ExitStopped, contract.ExitKilled:
			message = why
		case contract.ExitStoppedByForce:
			message = why + "; the guest did not shut down in time and was forced off"
		default:
			message = why + "; " + message
		}
	}
	return c.reporter.reportEnd(ctx, instance, phase, message)
}
