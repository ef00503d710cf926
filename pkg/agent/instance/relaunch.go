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

// launcher repeats starts that failed on the Mac.
type launcher struct {
	*Config
	reporter *reporter
	starter  *starter
}

// relaunch starts the runner of a prepared slot, and retries up to maxLaunches times.
func (l *launcher) relaunch(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	now := l.Clock.Now()
	m := l.reporter.memories.of(instance.UID)
	tries, wait := m.launchWait(now)
	switch {
	case wait > 0:
		l.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), wait)
		return nil
	case tries >= maxLaunches:
		if err := l.Stopper.Erase(slot); err != nil { // a late runner may hold the slot
			return err
		}
		return l.reporter.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("The virtual machine's process did not start in %d tries: %v", tries, slot.Err))
	}
	if _, err := l.starter.confirmGrant(ctx, instance); err != nil {
		return err
	}
	m.launched(now)
	l.Starting.RLock()
	defer l.Starting.RUnlock()
	if err := l.Slots.Launch(slot.UID()); err != nil {
		klog.ErrorS(err, "Failed to start the VM's process", "instance", klog.KObj(instance), "try", tries+1)
	}
	return nil // a change of the slot queues it again
}

// kernelRefused retries for refusalWindow, because the kernel may release a VM late. If it still
// refuses while fewer than two VMs run, its quota is stuck, and only a reboot resets it.
func (l *launcher) kernelRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	m := l.reporter.memories.of(instance.UID)
	since, tries := m.refused(l.Clock.Now())
	waited := l.Clock.Since(since)
	if waited < refusalWindow || tries < minRefusals {
		// The first refusal waits. Each later check tries at most once per pause, whatever
		// triggered it.
		var err error
		if next := l.nextTry(slot.Result.EndedAt); next > 0 {
			l.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), next)
		} else {
			err = l.retryRefused(ctx, instance, slot, m)
		}
		// The try does not wait for the API, which may be unreachable.
		return errors.Join(err, l.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = "The kernel of the Mac refuses the virtual machine; retrying"
		}))
	}
	running := 0
	for _, s := range l.Slots.Statuses() {
		if s.Phase == slots.Attached {
			running++
		}
	}
	message := fmt.Sprintf("The kernel refused a virtual machine %d times in %s although %d of %d run: %v", tries+1, waited.Truncate(time.Second), running, rules.MaxVMsPerMac, slot.Result.Error)
	if err := l.Quarantine.KernelQuotaStuck(message); err != nil {
		return err
	}
	if err := l.Rejections.Record(ctx, rackv1alpha1.LayerKernel, instance.Namespace, rejections.Reference(instance), rackv1alpha1.ReasonKernelQuotaStuck, message); rejections.IsTransient(err) {
		return err
	}
	return l.reporter.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, message)
}

// nextTry returns at most refusalPause: the time of the last try is from a file, and the clock may
// have been set back.
func (l *launcher) nextTry(lastTry time.Time) time.Duration {
	return min(refusalPause, refusalPause-l.Clock.Since(lastTry))
}

// retryRefused relaunches a virtual machine that the kernel has refused.
func (l *launcher) retryRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, m *memory) error {
	if _, err := l.starter.confirmGrant(ctx, instance); err != nil {
		return err
	}
	l.Starting.RLock()
	defer l.Starting.RUnlock()
	if err := l.Slots.Relaunch(slot.UID()); err != nil {
		return err
	}
	m.retried()
	return nil
}
