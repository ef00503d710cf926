package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// enqueueStops queues the slots that hold an instance.
func (a *Agent) enqueueStops(uid string) {
	if a.slots == nil {
		return // not open yet
	}
	for _, s := range a.slots.Statuses() {
		if s.Spec != nil && s.UID() == uid {
			a.stopQueue.Add(s.Slot)
		}
	}
}

// stopAfter queues a slot after a wait, measured by the agent's clock.
func (a *Agent) stopAfter(ctx context.Context, slot int, wait time.Duration) {
	after := a.config.Clock.After(wait)
	go func() {
		select {
		case <-ctx.Done():
		case <-after:
			a.stopQueue.Add(slot)
		}
	}()
}

// stopSlots stops the virtual machines that have a known reason to stop. It has its own queue and
// calls no API, so that a hanging report or an image pull does not delay a stop.
func (a *Agent) stopSlots(ctx context.Context) {
	for {
		n, shutdown := a.stopQueue.Get()
		if shutdown {
			return
		}
		if err := a.stopSlot(ctx, a.slots.Statuses()[n]); err != nil {
			klog.V(2).InfoS("Failed to stop VM; retrying", "slot", n, "err", err)
			a.stopQueue.AddRateLimited(n)
		} else {
			a.stopQueue.Forget(n)
		}
		a.stopQueue.Done(n)
	}
}

func (a *Agent) stopSlot(ctx context.Context, slot slots.Status) error {
	if slot.Spec == nil || slot.Phase != slots.Attached && slot.Phase != slots.Silent {
		return nil
	}
	instance, err := a.instances.MacOSInstances(slot.Spec.Namespace).Get(slot.Spec.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || string(instance.UID) != slot.UID() || instance.Status.NodeName != a.config.NodeName {
		return err
	}
	pod, err := a.placeholder(instance)
	if err != nil {
		return err
	}
	if a.mismatch(instance, slot) != "" {
		return a.stop(ctx, slot, rules.DefaultStopGrace) // a copy: an instance never changes its identity
	}
	if stop, grace := knownStop(instance, pod); stop {
		return a.stop(ctx, slot, grace)
	}
	return nil
}

// mayNotStart reports whether the caches have a reason for an instance to stop, or no longer have
// the instance.
func (a *Agent) mayNotStart(instance *instancev1alpha1.MacOSInstance) bool {
	cached, err := a.instances.MacOSInstances(instance.Namespace).Get(instance.Name)
	if err != nil || cached.UID != instance.UID {
		return true
	}
	pod, err := a.placeholder(cached)
	if err != nil {
		return true
	}
	stop, _ := knownStop(cached, pod)
	return stop
}

// cancelPull cancels the image pull of an instance that has to stop.
func (a *Agent) cancelPull(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.pulls[uid]; cancel != nil {
		cancel()
	}
}

// knownStop reports whether the cached objects require an instance's virtual machine to stop, and
// returns the grace period.
func knownStop(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (bool, time.Duration) {
	if stop, grace := stopAsked(instance); stop {
		return true, grace
	}
	if pod != nil && pod.DeletionTimestamp != nil {
		return true, graceOf(pod)
	}
	return rules.InstanceEnded(instance.Status.Phase), rules.DefaultStopGrace
}
