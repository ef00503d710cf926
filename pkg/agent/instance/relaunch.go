package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/witness"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

const (
	// refusalWindow is the time for which the kernel may refuse a VM within the limit before its
	// quota counts as stuck. refusalPause is the time between tries. At least minRefusals tries are
	// required, because elapsed time alone proves nothing.
	refusalWindow = time.Minute
	refusalPause  = 5 * time.Second
	minRefusals   = 6
	// maxLaunches is the limit of tries to start a runner. The pause doubles with each try, because
	// the runner is missing for a moment during a package upgrade.
	maxLaunches = 6
	launchPause = time.Second
)

// relauncher retries failed launches.
type relauncher struct {
	*Config
	reporter *reporter
	starter  *starter
	// began is the start of this agent.
	began time.Time
}

// relaunch starts the runner of a prepared slot, and retries up to maxLaunches times.
func (r *relauncher) relaunch(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	now := r.Clock.Now()
	history := r.reporter.histories.of(instance.UID)
	tries, wait := history.launchWait(now)
	switch {
	case wait > 0:
		r.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), wait)
		return nil
	case tries >= maxLaunches:
		if err := r.Stopper.Erase(slot); err != nil { // a late runner may hold the slot
			return err
		}
		return r.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("The virtual machine's process did not start in %d tries: %v", tries, slot.Err))
	}
	if !r.Witness.Confirmed() {
		return witness.ErrUnconfirmed
	}
	if _, err := r.starter.confirmGrant(ctx, instance); err != nil {
		return err
	}
	history.launched(now)
	r.PlacementLock.RLock()
	defer r.PlacementLock.RUnlock()
	if err := r.starter.reopenCaches(instance); err != nil {
		return err
	}
	if err := r.Slots.Launch(slot.UID()); err != nil {
		klog.ErrorS(err, "Failed to start the VM's process", "instance", klog.KObj(instance), "try", tries+1)
	}
	return nil // a change of the slot queues it again
}

// kernelRefused retries for refusalWindow, because the kernel may release a VM late. If it still
// refuses while fewer than two VMs run, its quota is stuck, and only a reboot resets it.
func (r *relauncher) kernelRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	history := r.reporter.histories.of(instance.UID)
	since, tries := history.refused(r.Clock.Now())
	waited := r.Clock.Since(since)
	if waited < refusalWindow || tries < minRefusals {
		// The first refusal waits. Each later check tries at most once per pause, whatever
		// triggered it.
		var err error
		if next := r.nextTry(slot.Result.EndedAt); next > 0 {
			r.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), next)
		} else {
			err = r.retryRefused(ctx, instance, slot, history)
		}
		// The try does not wait for the API, which may be unreachable.
		return errors.Join(err, r.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = "The kernel of the Mac refuses the virtual machine; retrying"
		}))
	}
	running := 0
	for _, s := range r.Slots.Statuses() {
		if s.Phase == slots.Attached {
			running++
		}
	}
	message := fmt.Sprintf("The kernel refused a virtual machine %d times in %s although %d of %d run: %v", tries+1, waited.Truncate(time.Second), running, rules.MaxVMsPerMac, slot.Result.Error)
	if err := r.Quarantine.KernelQuotaStuck(message); err != nil {
		return err
	}
	if err := r.Rejections.Record(ctx, rackv1alpha1.LayerKernel, instance.Namespace, rejections.Reference(instance), rackv1alpha1.ReasonKernelQuotaStuck, message); rejections.IsTransient(err) {
		return err
	}
	return r.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, message)
}

// keychainLocked quarantines the Mac whose login keychain is locked. The instance waits, and starts
// after the end of the quarantine. A failure from before the start of the agent may be from before
// a reboot, so the start is tried again first.
func (r *relauncher) keychainLocked(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	history := r.reporter.histories.of(instance.UID)
	at := slot.Result.EndedAt
	if history.keychainLocked(at) && !at.Before(r.began) {
		message := fmt.Sprintf("macOS starts no virtual machine: %s; unlock the login keychain at the screen, then end the quarantine", slot.Result.Error.Message)
		if err := r.Quarantine.KeychainLocked(message); err != nil {
			return err
		}
	}
	macNode, err := r.MacNode.Cached()
	if err != nil {
		return err
	}
	if r.Quarantine.Blocks(macNode) {
		return r.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = fmt.Sprintf("The login keychain of MacNode %s is locked; the virtual machine starts when the quarantine has ended", macNode.Name)
		})
	}
	return r.retryRefused(ctx, instance, slot, history)
}

// nextTry returns at most refusalPause: the time of the last try is from a file, and the clock may
// have been set back.
func (r *relauncher) nextTry(lastTry time.Time) time.Duration {
	return min(refusalPause, refusalPause-r.Clock.Since(lastTry))
}

// retryRefused relaunches a virtual machine that macOS has refused.
func (r *relauncher) retryRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, history *startHistory) error {
	if _, err := r.starter.confirmGrant(ctx, instance); err != nil {
		return err
	}
	r.PlacementLock.RLock()
	defer r.PlacementLock.RUnlock()
	if err := r.starter.reopenCaches(instance); err != nil {
		return err
	}
	if err := r.Slots.Relaunch(slot.UID()); err != nil {
		return err
	}
	history.retried()
	return nil
}
