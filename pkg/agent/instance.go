package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
)

const (
	// refusalWindow is how long the kernel may refuse a VM within the limit before its quota counts
	// as stuck. refusalPause is the time between tries. At least minRefusals tries are required,
	// because elapsed time alone proves nothing.
	refusalWindow = time.Minute
	refusalPause  = 5 * time.Second
	minRefusals   = 6
	// maxLaunches is the limit of tries to start a runner. The pause doubles with each try, because
	// the runner is missing for a moment during a package upgrade.
	maxLaunches = 6
	launchPause = time.Second
	// stopMargin is how long a runner may take to stop its VM, its own forced stop included. Then
	// the agent kills the runner.
	stopMargin = time.Minute
)

// stopAsked reports whether the tenant or a controller wants the instance to stop, and returns the
// grace period.
func stopAsked(instance *instancev1alpha1.MacOSInstance) (bool, time.Duration) {
	if request := instance.Status.StopRequest; request != nil {
		return true, time.Duration(request.GracePeriodSeconds) * time.Second
	}
	return instance.DeletionTimestamp != nil || instance.Status.Phase == instancev1alpha1.MacOSInstanceStopping, rules.DefaultStopGrace
}

// reconcileInstance reconciles the virtual machine with the instance.
func (a *Agent) reconcileInstance(ctx context.Context, name types.NamespacedName) error {
	instance, err := a.getInstance(name)
	if apierrors.IsNotFound(err) || (err == nil && instance.Status.NodeName != a.config.NodeName) {
		instance = nil
	} else if err != nil {
		return err
	}
	// An error of a VM with the same name must not delay the instance.
	return errors.Join(a.syncInstance(ctx, name, instance), a.syncMismatches(ctx, name, instance))
}

// getInstance returns an instance from the cache, or the agent's own write if that is newer.
func (a *Agent) getInstance(name types.NamespacedName) (*instancev1alpha1.MacOSInstance, error) {
	cached, err := a.instances.MacOSInstances(name.Namespace).Get(name.Name)
	if err != nil {
		return nil, err
	}
	obj, exists, err := a.written.GetByKey(name.String())
	if err != nil || !exists {
		return cached, err
	}
	written := obj.(*instancev1alpha1.MacOSInstance)
	if written.UID != cached.UID {
		return cached, nil
	}
	if written != cached {
		// If the API was restored to an earlier state, the cache sends no later event.
		a.queue.AddAfter(key{instanceKey, name}, ownWrites)
	}
	return written, nil
}

// syncMismatches ends the virtual machines that have the name of an instance but do not belong to
// it.
func (a *Agent) syncMismatches(ctx context.Context, name types.NamespacedName, instance *instancev1alpha1.MacOSInstance) error {
	var errs []error
	for _, slot := range a.slots.Statuses() {
		switch {
		case slot.Spec == nil || slot.Spec.Namespace != name.Namespace || slot.Spec.Name != name.Name:
		case a.mismatch(instance, slot) != "":
			errs = append(errs, a.syncMismatch(ctx, slot))
		default:
			a.forgetUnknown(slot)
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) syncInstance(ctx context.Context, name types.NamespacedName, instance *instancev1alpha1.MacOSInstance) error {
	if instance == nil {
		// A pod of the same name may have waited for the slot.
		return a.enqueuePods(name.Namespace)
	}
	pod, err := a.placeholder(instance)
	if err != nil {
		return err
	}
	slot, held := a.slots.Find(string(instance.UID))
	if held && a.mismatch(instance, slot) != "" {
		return nil // It is being stopped. Its exit does not end the instance, and its change is queued.
	}
	switch {
	case rules.InstanceEnded(instance.Status.Phase):
		err = a.clear(ctx, instance, slot, held)
	case held:
		err = a.advance(ctx, instance, pod, slot)
	default:
		err = a.begin(ctx, instance, pod)
	}
	if err != nil {
		return err
	}
	return a.reportPod(ctx, instance, pod)
}

// mismatch returns why the virtual machine in a slot does not belong to the instance, which may be
// nil. It returns an empty string if it does.
func (a *Agent) mismatch(instance *instancev1alpha1.MacOSInstance, slot slots.Status) string {
	if instance == nil || string(instance.UID) != slot.UID() || instance.Status.NodeName != a.config.NodeName {
		return reasonUnknownInstance
	}
	if of, ok := a.slots.Find(slot.UID()); ok && of.Slot != slot.Slot {
		return reasonDuplicateIdentity
	}
	differs := func(api, here string) bool { return api != "" && api != here }
	if differs(instance.Status.MachineID, slot.Spec.MachineID) || differs(instance.Status.MACAddress, slot.Spec.MACAddress) {
		return reasonForeignIdentity
	}
	return ""
}

// syncMismatch stops a copy of an instance's virtual machine and erases it after the rejection is
// recorded. A VM without an instance continues to run: see unknownVMs. syncMismatch reads the API,
// because the cache may be stale.
func (a *Agent) syncMismatch(ctx context.Context, slot slots.Status) error {
	live, err := a.config.Macrack.InstanceV1alpha1().MacOSInstances(slot.Spec.Namespace).Get(ctx, slot.Spec.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // not in the API, or on another Mac
		live = nil
	} else if err != nil {
		return err
	}
	why := a.mismatch(live, slot)
	if why == reasonUnknownInstance {
		return a.syncUnknown(ctx, live, slot)
	}
	a.forgetUnknown(slot)
	if why == "" {
		return nil
	}
	return a.reap(ctx, slot, why, mismatchMessages[why])
}

// reap stops a virtual machine, and erases it after the reason is recorded.
func (a *Agent) reap(ctx context.Context, slot slots.Status, reason, message string) error {
	switch slot.Phase {
	case slots.Attached, slots.Silent:
		klog.InfoS("Stopping VM that does not match its instance", "instance", klog.KRef(slot.Spec.Namespace, slot.Spec.Name), "uid", slot.UID(), "slot", slot.Slot, "reason", reason)
		return a.stop(ctx, slot, rules.DefaultStopGrace)
	case slots.Exited, slots.Prepared:
		if err := a.recordRejection(ctx, rackv1alpha1.LayerAgent, slot.Spec.Namespace, &rackv1alpha1.AuditReference{
			Namespace: slot.Spec.Namespace, Name: slot.Spec.Name, UID: types.UID(slot.UID()),
		}, reason, message); isTransient(err) {
			return err // erasing first would lose the record
		}
		if err := a.erase(slot); err != nil {
			return err
		}
		// The free slot no longer names an instance, so its change does not queue the instances
		// that wait for it.
		a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: slot.Spec.Namespace, Name: slot.Spec.Name}})
		return a.enqueuePods(slot.Spec.Namespace)
	}
	return nil // a change of the slot queues it again
}

var mismatchMessages = map[string]string{
	reasonDuplicateIdentity: "a second virtual machine on the Mac was a copy of that of the MacOSInstance; it was stopped and erased",
	reasonForeignIdentity:   "a virtual machine on the Mac did not have the machine ID or MAC address of its MacOSInstance; it was stopped and erased",
}

// isTransient reports whether a retry may succeed.
func isTransient(err error) bool {
	return err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsNotFound(err)
}

// stopping is a requested stop.
type stopping struct {
	uid   string
	since time.Time
	wake  time.Time // the time of the next check
}

// stop shuts the guest down; when the grace period ends, the runner forces the VM off. A runner
// that does neither in time is killed, and the VM with it.
func (a *Agent) stop(ctx context.Context, slot slots.Status, grace time.Duration) error {
	grace = min(max(grace, 0), contract.MaxGrace)
	now := a.config.Clock.Now()
	a.mu.Lock()
	s := a.stops[slot.Slot]
	if s == nil || s.uid != slot.UID() {
		s = &stopping{uid: slot.UID(), since: now}
		a.stops[slot.Slot] = s
	}
	due := s.since.Add(grace + stopMargin)
	overdue, wake := !now.Before(due), false
	if !overdue && (s.wake.Before(now) || due.Before(s.wake)) {
		s.wake, wake = due, true
	}
	a.mu.Unlock()
	if wake {
		a.enqueueAfter(ctx, key{instanceKey, types.NamespacedName{Namespace: slot.Spec.Namespace, Name: slot.Spec.Name}}, due.Sub(now))
		a.stopAfter(ctx, slot.Slot, due.Sub(now))
	}
	var err error
	if slot.Phase == slots.Attached {
		err = a.slots.StopSlot(ctx, slot.Slot, grace)
	}
	if overdue {
		klog.InfoS("Killing runner that does not stop its VM", "slot", slot.Slot, "uid", slot.UID(), "asked", s.since)
		err = a.slots.KillRunner(ctx, slot.Slot)
	}
	return err
}

// clear removes the remains of an instance that has ended.
func (a *Agent) clear(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, held bool) error {
	a.mu.Lock()
	delete(a.refusals, instance.UID)
	delete(a.launches, instance.UID)
	a.mu.Unlock()
	if !held {
		return nil
	}
	switch slot.Phase {
	case slots.Attached, slots.Silent:
		return a.stop(ctx, slot, rules.DefaultStopGrace)
	case slots.Exited, slots.Prepared:
		return a.erase(slot)
	}
	return nil
}

func (a *Agent) erase(slot slots.Status) error {
	if err := a.slots.EraseSlot(slot.Slot); err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.stops, slot.Slot)
	a.mu.Unlock()
	return a.state.keep()
}

// advance reports a slot's virtual machine and takes the next step.
func (a *Agent) advance(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, slot slots.Status) error {
	stop, grace, why, err := a.mustStop(ctx, instance, pod)
	if err != nil {
		return err
	}
	switch slot.Phase {
	case slots.Prepared:
		if stop {
			return a.withdraw(ctx, instance, slot, why)
		}
		return a.launch(ctx, instance, slot)
	case slots.Attached:
		if !stop {
			return a.report(ctx, instance, slot)
		}
		// Stop first: the API may refuse the report, or not respond.
		err := a.stop(ctx, slot, grace)
		return errors.Join(err, a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			if s.Phase != instancev1alpha1.MacOSInstanceStopping {
				s.Phase, s.Message = instancev1alpha1.MacOSInstanceStopping, why
			}
			s.IPAddress = nil
		}))
	case slots.Silent:
		if stop {
			if err := a.stop(ctx, slot, grace); err != nil {
				klog.ErrorS(err, "Failed to kill unresponsive VM", "slot", slot.Slot)
			}
		}
		return a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = fmt.Sprintf("The virtual machine does not respond to the agent: %v", slot.Err)
		})
	case slots.Exited:
		return a.ended(ctx, instance, slot, stop, why)
	}
	return nil // a change of the slot queues it again
}

// withdraw ends a virtual machine that has not started. It erases the slot before it reports, so
// that a late runner finds nothing to run. If the runner was faster, it holds the slot, and the
// virtual machine is stopped as usual.
func (a *Agent) withdraw(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, why string) error {
	if err := a.erase(slot); err != nil {
		return err
	}
	return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceStopped, why+"; the virtual machine had not started")
}

// mustStop reports whether the virtual machine must stop, and returns the grace period and the
// reason.
func (a *Agent) mustStop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (bool, time.Duration, string, error) {
	if stop, grace := stopAsked(instance); stop {
		why := "Stopped as requested"
		switch request := instance.Status.StopRequest; {
		case request != nil && request.Reason != "":
			why = request.Reason
		case request == nil && instance.Status.Message != "":
			why = instance.Status.Message // set by the agent earlier
		}
		return true, grace, why, nil
	}
	if pod != nil && pod.DeletionTimestamp != nil {
		return true, graceOf(pod), rules.DescribeDeletion(pod), nil
	}
	// Both checks run: an error of one must not hide the result of the other.
	foreign, err := a.foreign(ctx, instance)
	if foreign != "" {
		return true, rules.DefaultStopGrace, foreign, nil
	}
	if pod == nil {
		gone, podErr := a.podGone(ctx, instance)
		if gone {
			return true, rules.DefaultStopGrace, rules.DescribeLoss(instance.Status.PodName), nil
		}
		err = errors.Join(err, podErr)
	}
	return false, 0, "", err
}

// graceOf returns the grace period of a pod that is being deleted.
func graceOf(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return rules.DefaultStopGrace
	}
	return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
}

// foreign returns why this Mac does not belong to the instance's lease, or an empty string if it
// does. It confirms a mismatch with the API, because the cache may be stale.
func (a *Agent) foreign(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (string, error) {
	macNode, err := a.macNodes.Get(a.config.NodeName)
	if err == nil && foreignTo(macNode, instance) == "" {
		return "", nil
	}
	macNode, err = a.config.Macrack.RackV1alpha1().MacNodes().Get(ctx, a.config.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("MacNode %s does not exist", a.config.NodeName), nil
	}
	if err != nil {
		return "", err
	}
	return foreignTo(macNode, instance), nil
}

func foreignTo(macNode *rackv1alpha1.MacNode, instance *instancev1alpha1.MacOSInstance) string {
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

// report reports the state of the running virtual machine.
func (a *Agent) report(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	vm, phase := slot.State, instancev1alpha1.MacOSInstanceRunning
	switch vm.VM {
	case contract.VMRunning:
	case contract.VMStarting:
		phase = instancev1alpha1.MacOSInstanceStarting
	default: // it ends by itself; its result has the reason
		return a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) { s.IPAddress = nil })
	}
	if phase == instancev1alpha1.MacOSInstanceRunning && instance.Status.Phase != phase {
		a.mu.Lock()
		delete(a.refusals, instance.UID)
		delete(a.launches, instance.UID)
		a.mu.Unlock()
		klog.InfoS("VM running", "instance", klog.KObj(instance), "slot", slot.Slot)
	}
	return a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
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
			a.condition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionTrue, "GuestAgentAnswers", "")
		case vm.GuestSeen:
			a.condition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, "GuestSilent", "the guest agent no longer responds")
		default:
			a.condition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, "GuestBoots", "the guest agent has not responded yet")
		}
	})
}

// ended reports a virtual machine that has exited: its runner is gone and the slot's lock is free.
func (a *Agent) ended(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, stop bool, why string) error {
	result := slot.Result
	if result.StartedAt != nil && instance.Status.StartedAt == nil {
		// The VM ran without an agent: the ledger needs its start before its end.
		var err error
		if instance, err = a.updated(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.StartedAt = &metav1.Time{Time: result.StartedAt.Truncate(time.Second)}
		}); err != nil {
			return err
		}
	}
	if result.Reason == contract.ExitStartFailed && contract.IsLimitExceeded(result.Error) && !stop {
		return a.kernelRefused(ctx, instance, slot)
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
	return a.finish(ctx, instance, phase, message)
}

// refusals counts the kernel's refusals of one virtual machine.
type refusals struct {
	since time.Time // the first refusal
	tries int       // tries after the first refusal
}

// kernelRefused retries for refusalWindow, because the kernel may release a VM late. If it still
// refuses while fewer than two VMs run, its quota is stuck, and only a reboot helps.
func (a *Agent) kernelRefused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	a.mu.Lock()
	r, refused := a.refusals[instance.UID]
	if !refused {
		r.since = a.config.Clock.Now()
		a.refusals[instance.UID] = r
	}
	a.mu.Unlock()
	waited := a.config.Clock.Since(r.since)
	if waited < refusalWindow || r.tries < minRefusals {
		// The first refusal waits. Each later check tries at most once per pause, whatever
		// triggered it.
		var err error
		if next := a.nextTry(slot.Result.EndedAt); next > 0 {
			a.enqueueAfter(ctx, key{instanceKey, types.NamespacedName{Namespace: instance.Namespace, Name: instance.Name}}, next)
		} else {
			err = a.tryAgain(ctx, instance, slot)
		}
		// The try does not wait for the API, which may be unreachable.
		return errors.Join(err, a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = "The kernel of the Mac refuses the virtual machine; retrying"
		}))
	}
	running := 0
	for _, s := range a.slots.Statuses() {
		if s.Phase == slots.Attached {
			running++
		}
	}
	message := fmt.Sprintf("The kernel refused a virtual machine %d times in %s although %d of %d run: %v", r.tries+1, waited.Truncate(time.Second), running, rules.MaxVMsPerMac, slot.Result.Error)
	info, err := a.config.Host.Info()
	if err != nil {
		return err
	}
	if err := a.state.change(func(m *memory) {
		if m.Unhealthy == nil {
			m.Unhealthy = &unhealthy{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: message, BootID: info.BootID}
		}
	}); err != nil {
		return err
	}
	a.queue.Add(key{kind: macNodeKey})
	if err := a.recordRejection(ctx, rackv1alpha1.LayerKernel, instance.Namespace, reference(instance), rackv1alpha1.ReasonKernelQuotaStuck, message); isTransient(err) {
		return err
	}
	return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, message)
}

// nextTry returns at most refusalPause: the time of the last try is from a file, and the clock may
// have been set back.
func (a *Agent) nextTry(lastTry time.Time) time.Duration {
	return min(refusalPause, refusalPause-a.config.Clock.Since(lastTry))
}

// tryAgain relaunches a virtual machine that the kernel has refused.
func (a *Agent) tryAgain(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	if _, err := a.confirmStart(ctx, instance); err != nil {
		return err
	}
	a.starting.RLock()
	defer a.starting.RUnlock()
	if err := a.slots.Relaunch(slot.UID()); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, refused := a.refusals[instance.UID]; refused {
		r.tries++
		a.refusals[instance.UID] = r
	}
	return nil
}

// launches counts the tries to start a runner.
type launches struct {
	tries int
	last  time.Time
}

// launch starts the runner of a prepared slot, and retries up to maxLaunches times.
func (a *Agent) launch(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	now := a.config.Clock.Now()
	a.mu.Lock()
	l := a.launches[instance.UID]
	wait := time.Duration(0)
	if l.tries > 0 {
		pause := launchPause << (l.tries - 1)
		wait = min(pause, l.last.Add(pause).Sub(now))
	}
	a.mu.Unlock()
	switch {
	case wait > 0:
		a.enqueueAfter(ctx, key{instanceKey, types.NamespacedName{Namespace: instance.Namespace, Name: instance.Name}}, wait)
		return nil
	case l.tries >= maxLaunches:
		if err := a.erase(slot); err != nil { // a late runner may hold the slot
			return err
		}
		return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("The virtual machine's process did not start in %d tries: %v", l.tries, slot.Err))
	}
	if _, err := a.confirmStart(ctx, instance); err != nil {
		return err
	}
	a.mu.Lock()
	a.launches[instance.UID] = launches{l.tries + 1, now}
	a.mu.Unlock()
	a.starting.RLock()
	defer a.starting.RUnlock()
	if err := a.slots.Launch(slot.UID()); err != nil {
		klog.ErrorS(err, "Failed to start the VM's process", "instance", klog.KObj(instance), "try", l.tries+1)
	}
	return nil // a change of the slot queues it again
}

// finish reports a terminal phase and sets the pod's last status at once: the instance may be
// deleted before its change arrives as an event.
func (a *Agent) finish(ctx context.Context, instance *instancev1alpha1.MacOSInstance, phase instancev1alpha1.MacOSInstancePhase, message string) error {
	ended, err := a.conclude(ctx, instance, phase, message)
	if err != nil {
		return err
	}
	pod, err := a.placeholder(ended)
	if err != nil {
		return err
	}
	return a.reportPod(ctx, ended, pod)
}

// conclude reports a terminal phase. The slot is erased afterwards: if the agent exits in between,
// its successor finds both.
func (a *Agent) conclude(ctx context.Context, instance *instancev1alpha1.MacOSInstance, phase instancev1alpha1.MacOSInstancePhase, message string) (*instancev1alpha1.MacOSInstance, error) {
	ended, err := a.updated(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.Message, s.IPAddress = phase, message, nil
		if s.StartedAt != nil && s.StoppedAt == nil {
			now := a.now()
			s.StoppedAt = &now
		}
		if meta.FindStatusCondition(s.Conditions, instancev1alpha1.MacOSInstanceGuestReady) != nil {
			a.condition(s, instance, instancev1alpha1.MacOSInstanceGuestReady, metav1.ConditionFalse, string(phase), message)
		}
	})
	if err != nil {
		return nil, err
	}
	klog.InfoS("VM ended", "instance", klog.KObj(instance), "phase", phase, "message", message)
	slot, held := a.slots.Find(string(instance.UID))
	return ended, a.clear(ctx, ended, slot, held)
}

// begin starts an instance that holds no slot, if it should run.
func (a *Agent) begin(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if instance.Status.MachineID != "" {
		for _, slot := range a.slots.Statuses() {
			if slot.Phase == slots.Silent && slot.Spec == nil {
				return a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
					s.Message = fmt.Sprintf("The agent cannot determine whether slot %d holds this virtual machine: %v", slot.Slot, slot.Err)
				})
			}
		}
	}
	if stop, _ := stopAsked(instance); stop {
		return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceStopped, "Stopped as requested; the virtual machine did not exist")
	}
	if instance.Status.StartedAt != nil {
		return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, "The virtual machine no longer exists on the Mac")
	}
	if instance.Status.MachineID != "" {
		// The agent may have exited after it erased the slot and before it reported the end.
		if stop, _, why, err := a.mustStop(ctx, instance, pod); err != nil {
			return err
		} else if stop {
			return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceStopped, why+"; the virtual machine did not exist")
		}
	}
	if pod == nil || pod.DeletionTimestamp != nil || podEnded(pod) {
		return nil // it is not requested yet, or no longer
	}
	foreign, err := a.foreign(ctx, instance)
	if err != nil {
		return err
	}
	if foreign != "" {
		return a.refuse(ctx, instance, pod, reasonForeignPod, foreign+": a Mac runs only virtual machines of its lease")
	}
	if wait, err := a.room(ctx, instance, pod); wait || err != nil {
		return err
	}
	return a.start(ctx, instance, pod)
}

// room reports whether the Mac can run one more virtual machine. If it never can, room refuses the
// pod.
func (a *Agent) room(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (wait bool, err error) {
	macNode, err := a.macNodes.Get(a.config.NodeName)
	if err != nil {
		return true, err
	}
	if u := a.state.get().Unhealthy; u != nil || macNode.Status.Quarantine != nil || a.unknownVMs() != "" {
		return true, a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = fmt.Sprintf("MacNode %s is quarantined; to start virtual machines, reboot the Mac or clear the quarantine", macNode.Name)
		})
	}
	if slot, found := a.unchecked(); found {
		return true, fmt.Errorf("slot %d runs a virtual machine whose instance is not found yet", slot.Slot)
	}
	for _, slot := range a.slots.Statuses() {
		if slot.Phase == slots.Free {
			return false, nil
		}
	}
	for _, slot := range a.slots.Statuses() {
		if slot.Spec == nil {
			return true, errSlotsBusy
		}
		holder, err := a.config.Macrack.InstanceV1alpha1().MacOSInstances(slot.Spec.Namespace).Get(ctx, slot.Spec.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return true, err
		}
		if err != nil || string(holder.UID) != slot.UID() || rules.InstanceEnded(holder.Status.Phase) {
			return true, errSlotsBusy // one is being erased
		}
	}
	return true, a.refuse(ctx, instance, pod, reasonSlotsFull, fmt.Sprintf("%d virtual machines are on the Mac, which is the limit; stop one first", rules.MaxVMsPerMac))
}

var errSlotsBusy = errors.New("the Mac's slots are being erased")

// start pulls the image, assigns the virtual machine its identity, and launches it. Every step is
// idempotent, so an interrupted start is repeated.
func (a *Agent) start(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	class, err := a.config.Macrack.InstanceV1alpha1().InstanceClasses().Get(ctx, instance.Spec.ClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("InstanceClass %s does not exist", instance.Spec.ClassName))
	}
	if err != nil {
		return err
	}
	image, err := a.config.Macrack.ImageV1alpha1().MacOSImages().Get(ctx, instance.Spec.ImageName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.finish(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("MacOSImage %s does not exist", instance.Spec.ImageName))
	}
	if err != nil {
		return err
	}
	instance, cached, err := a.pull(ctx, instance, image)
	if err != nil || a.mayNotStart(instance) {
		return err
	}
	if instance, err = a.claimStart(ctx, instance, cached); err != nil {
		return err
	}
	err = a.fill(instance, class, image, cached)
	if errors.Is(err, slots.ErrDuplicateIdentity) {
		return a.refuse(ctx, instance, pod, reasonDuplicateIdentity, err.Error())
	}
	if err != nil {
		_ = a.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = fmt.Sprintf("Failed to prepare the virtual machine; retrying: %v", err)
		})
	}
	return err
}

// claimStart assigns the instance a machine ID and a MAC address. The registry accepts them only if
// they are unique and the Mac may start one more virtual machine. It counts and records the start
// in the same transaction, so claimStart completes before the launch. After a refusal, the next try
// generates another identity.
func (a *Agent) claimStart(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image images.Cached) (*instancev1alpha1.MacOSInstance, error) {
	machineID, macAddress := instance.Status.MachineID, instance.Status.MACAddress
	if machineID == "" {
		var err error
		if machineID, err = a.config.NewMachineID(ctx); err != nil {
			return nil, fmt.Errorf("machine ID: %w", err)
		}
	}
	if macAddress == "" {
		macAddress = credentials.NewMACAddress()
	}
	claimed, err := a.updated(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.Message = instancev1alpha1.MacOSInstanceStarting, ""
		s.MachineID, s.MACAddress, s.ImageDigest = machineID, macAddress, image.Digest
		a.condition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionTrue, reasonCached, "")
	})
	if err != nil {
		return nil, err
	}
	if claimed == instance {
		// Nothing was written, so the registry has not checked the claim. The cache may miss the
		// agent's report of the end.
		claimed, err = a.config.Macrack.InstanceV1alpha1().MacOSInstances(instance.Namespace).Get(ctx, instance.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if claimed.UID != instance.UID || rules.InstanceEnded(claimed.Status.Phase) {
			return nil, fmt.Errorf("MacOSInstance %s has ended; the cache is stale", klog.KObj(instance))
		}
	}
	return a.confirmStart(ctx, claimed)
}

// confirmStart makes sure that the registry has granted the start. An instance may have its
// identity from a registry version without grants; the agent's next write obtains one.
func (a *Agent) confirmStart(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
	if instance.Status.StartGrantedAt != nil || instance.Status.StartedAt != nil {
		return instance, nil
	}
	faults.At("grant: before")
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":%q}}`, instance.UID, instance.Status.Phase)
	granted, err := a.patch(ctx, instance, patch)
	faults.At("grant: after")
	if err != nil {
		return nil, err
	}
	if granted.Status.StartGrantedAt == nil {
		return nil, errors.New("the registry did not grant the start of the virtual machine")
	}
	return granted, nil
}

// fill places the virtual machine in a slot and starts it.
func (a *Agent) fill(instance *instancev1alpha1.MacOSInstance, class *instancev1alpha1.InstanceClass, image *imagev1alpha1.MacOSImage, cached images.Cached) error {
	a.starting.RLock()
	defer a.starting.RUnlock()
	// The release of the Mac may have begun meanwhile. Either the scrub waits for this lock, or the
	// MacNode shows the release.
	if macNode, err := a.macNodes.Get(a.config.NodeName); err != nil {
		return err
	} else if foreign := foreignTo(macNode, instance); foreign != "" {
		return errors.New(foreign)
	}
	resources := class.Spec.Resources
	spec := &contract.Spec{
		InstanceUID: string(instance.UID), Namespace: instance.Namespace, Name: instance.Name,
		MachineID: instance.Status.MachineID, MACAddress: instance.Status.MACAddress,
		CPU: int(resources.CPU.Int64()), MemoryBytes: resources.Memory.Int64(),
		HardwareModel:     cmp.Or(image.Spec.HardwareModel, cached.HardwareModel),
		SSHAuthorizedKeys: slices.Clone(instance.Spec.SSHAuthorizedKeys),
		StartupScript:     instance.Spec.StartupScript,
	}
	if display := class.Spec.Display; display != nil {
		spec.Display = &contract.Display{Width: display.Width, Height: display.Height, PixelsPerInch: display.PixelsPerInch}
	}
	if err := a.slots.Prepare(spec, func(dir contract.SlotDir) error {
		return clone(cached, dir, resources.Storage.Int64())
	}); err != nil {
		return err
	}
	return a.slots.Launch(spec.InstanceUID)
}

func clone(image images.Cached, dir contract.SlotDir, size int64) error {
	if _, err := disk.Clone(image.Disk, dir.DiskPath(), size); err != nil {
		return err
	}
	_, err := disk.Clone(image.Aux, dir.AuxPath(), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the backend creates one
	}
	return err
}

func (a *Agent) condition(s *instancev1alpha1.MacOSInstanceStatus, instance *instancev1alpha1.MacOSInstance, name string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: message,
		ObservedGeneration: instance.Generation, LastTransitionTime: a.now(),
	})
}

func (a *Agent) now() metav1.Time {
	return metav1.Time{Time: a.config.Clock.Now().Truncate(time.Second)}
}

// update writes the status if change modifies it.
func (a *Agent) update(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) error {
	_, err := a.updated(ctx, instance, change)
	return err
}

func (a *Agent) updated(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) (*instancev1alpha1.MacOSInstance, error) {
	next := instance.DeepCopy()
	change(&next.Status)
	if equality.Semantic.DeepEqual(instance.Status, next.Status) {
		return instance, nil
	}
	faults.At("report " + string(next.Status.Phase) + ": before")
	written, err := a.patchStatus(ctx, instance, next)
	faults.At("report " + string(next.Status.Phase) + ": after")
	return written, err
}

// patchStatus writes the difference between two versions of an instance's status, whatever others
// have written meanwhile: the registry checks it.
func (a *Agent) patchStatus(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
	patch, err := apiclient.StatusPatch(before, after)
	if err != nil {
		return nil, err
	}
	return a.patch(ctx, after, patch)
}

func (a *Agent) patch(ctx context.Context, instance *instancev1alpha1.MacOSInstance, patch []byte) (*instancev1alpha1.MacOSInstance, error) {
	written, err := a.config.Macrack.InstanceV1alpha1().MacOSInstances(instance.Namespace).Patch(ctx, instance.Name, apiclient.PatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, err
	}
	a.written.Mutation(written)
	return written, nil
}

// instancesHere returns a namespace's instances on this Mac.
func (a *Agent) instancesHere(namespace string) ([]*instancev1alpha1.MacOSInstance, error) {
	all, err := a.instances.MacOSInstances(namespace).List(labels.Everything())
	return slices.DeleteFunc(all, func(i *instancev1alpha1.MacOSInstance) bool { return i.Status.NodeName != a.config.NodeName }), err
}
