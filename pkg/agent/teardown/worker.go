package teardown

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/witness"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Enqueue queues the slots that hold an instance.
func (s *Stopper) Enqueue(uid string) {
	for _, slot := range s.Slots.Statuses() {
		if slot.Spec != nil && slot.UID() == uid {
			s.stopQueue.Add(slot.Slot)
		}
	}
}

// EnqueueSlot queues a slot.
func (s *Stopper) EnqueueSlot(slot int) { s.stopQueue.Add(slot) }

// ShutDown ends Run.
func (s *Stopper) ShutDown() { s.stopQueue.ShutDown() }

// Run stops the virtual machines that have a known reason to stop. It has its own queue, so that a
// hanging report or an image pull does not delay a stop. It calls the API only to confirm a stop
// that the instance does not request. Several may run.
func (s *Stopper) Run(ctx context.Context) {
	for {
		n, shutdown := s.stopQueue.Get()
		if shutdown {
			return
		}
		if err := s.StopIfRequired(ctx, s.Slots.Statuses()[n]); err != nil {
			klog.V(2).InfoS("Failed to stop VM; retrying", "slot", n, "err", err)
			s.stopQueue.AddRateLimited(n)
		} else {
			s.stopQueue.Forget(n)
		}
		s.stopQueue.Done(n)
	}
}

// StopIfRequired stops the virtual machine in a slot if the caches have a reason.
func (s *Stopper) StopIfRequired(ctx context.Context, slot slots.Status) error {
	if slot.Spec == nil || slot.Phase != slots.Attached && slot.Phase != slots.Unreachable {
		return nil
	}
	instance, err := s.Instances.Cached(slot.Spec.Namespace, slot.Spec.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || string(instance.UID) != slot.UID() || !s.Instances.Here(instance) {
		return err
	}
	pod, err := s.Pods.Placeholder(instance)
	if err != nil {
		return err
	}
	stop, grace := StopRequired(instance, pod)
	if s.Mismatch(instance, slot) != "" { // a copy: an instance never changes its identity
		live, err := Confirm(ctx, s.Witness, s.Instances, instance)
		if err != nil || live == nil || s.Mismatch(live, slot) == "" {
			return err
		}
		return s.Stop(ctx, slot, rules.DefaultStopGrace)
	}
	if !stop {
		return nil
	}
	if requested, _ := Requested(instance); !requested && !rules.InstanceEnded(instance.Status.Phase) {
		// The garbage collector deletes the pods of instances that the server has lost.
		live, err := Confirm(ctx, s.Witness, s.Instances, instance)
		if err != nil || live == nil {
			return err
		}
		if stop, grace = StopRequired(live, pod); !stop {
			return nil
		}
	}
	return s.Stop(ctx, slot, grace)
}

// Confirm returns the instance from a server that has all records that the Mac has seen. It returns
// nil if the server has no such instance, or if the instance was restored or has another
// placeholder pod: its change queues it again. The caches do not suffice to stop a virtual machine
// without a request for it, because they may be from before a loss.
func Confirm(ctx context.Context, keeper *witness.Keeper, instances *objects.Instances, instance *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
	if err := keeper.Confirm(ctx); err != nil {
		return nil, err
	}
	live, err := instances.Live(ctx, instance.Namespace, instance.Name)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, err
	case live.UID != instance.UID || live.Status.PodName != instance.Status.PodName || Restored(live):
		return nil, nil
	}
	return live, nil
}

// MayNotStart reports whether the caches have a reason for an instance to stop, or no longer have
// the instance.
func (s *Stopper) MayNotStart(instance *instancev1alpha1.MacOSInstance) bool {
	cached, err := s.Instances.Cached(instance.Namespace, instance.Name)
	if err != nil || cached.UID != instance.UID {
		return true
	}
	pod, err := s.Pods.Placeholder(cached)
	if err != nil {
		return true
	}
	stop, _ := StopRequired(cached, pod)
	return stop
}
