// Package teardown stops virtual machines and erases their slots.
package teardown

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/pods"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/state"
	"macrack.io/macrack/pkg/agent/witness"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

// stopMargin is the time limit for a runner to stop its VM, its own forced stop included. Then the
// agent kills the runner.
const stopMargin = time.Minute

// maxStopDelay bounds the wait before a failed stop is retried.
const maxStopDelay = 5 * time.Second

// Config configures a Stopper.
type Config struct {
	Slots      *slots.Manager
	Instances  *objects.Instances
	Pods       *pods.Pods
	Rejections *rejections.Recorder
	State      *state.File
	Queue      *queue.Queue[queue.Key]
	Clock      clock.Clock
	Witness    *witness.Keeper
}

// Stopper stops virtual machines and erases their slots.
type Stopper struct {
	Config
	stopQueue *queue.Queue[int] // of slot numbers
	stops     [rules.MaxVMsPerMac]stopping
}

// New returns a Stopper.
func New(config Config) *Stopper {
	return &Stopper{Config: config, stopQueue: queue.New[int](config.Clock, maxStopDelay)}
}

// stopping is the requested stop of the virtual machine in one slot.
type stopping struct {
	mu    sync.Mutex
	uid   string // empty without a request
	since time.Time
	wake  time.Time // the time of the next check
}

// request records a stop request. It returns the time of the request, the time to kill the runner,
// and whether the caller must schedule a check for then.
func (s *stopping) request(uid string, grace time.Duration, now time.Time) (since, due time.Time, wake bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uid != uid {
		s.uid, s.since, s.wake = uid, now, time.Time{}
	}
	due = s.since.Add(grace + stopMargin)
	if now.Before(due) && (s.wake.Before(now) || due.Before(s.wake)) {
		s.wake, wake = due, true
	}
	return s.since, due, wake
}

func (s *stopping) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uid = ""
}

// Stop shuts the guest down; when the grace period ends, the runner forces the VM off. A runner
// that does neither in time is killed, and the VM with it.
func (s *Stopper) Stop(ctx context.Context, slot slots.Status, grace time.Duration) error {
	grace = min(max(grace, 0), contract.MaxGrace)
	now := s.Clock.Now()
	since, due, wake := s.stops[slot.Slot].request(slot.UID(), grace, now)
	if wake {
		s.Queue.AddAfterClock(ctx, queue.Instance(slot.Spec.Namespace, slot.Spec.Name), due.Sub(now))
		s.stopQueue.AddAfterClock(ctx, slot.Slot, due.Sub(now))
	}
	var err error
	if slot.Phase == slots.Attached {
		err = s.Slots.StopSlot(ctx, slot.Slot, grace)
	}
	if !now.Before(due) {
		klog.InfoS("Killing runner that does not stop its VM", "slot", slot.Slot, "uid", slot.UID(), "asked", since)
		err = s.Slots.KillRunner(ctx, slot.Slot)
	}
	return err
}

// Erase removes the files of a slot in which no virtual machine runs.
func (s *Stopper) Erase(slot slots.Status) error {
	if err := s.Slots.EraseSlot(slot.Slot); err != nil {
		return err
	}
	s.stops[slot.Slot].forget()
	return s.State.Keep()
}

// Reap stops a virtual machine that does not match its instance, and erases it after the reason is
// recorded.
func (s *Stopper) Reap(ctx context.Context, slot slots.Status, reason, message string) error {
	switch slot.Phase {
	case slots.Attached, slots.Unreachable:
		klog.InfoS("Stopping VM that does not match its instance", "instance", klog.KRef(slot.Spec.Namespace, slot.Spec.Name), "uid", slot.UID(), "slot", slot.Slot, "reason", reason)
		return s.Stop(ctx, slot, rules.DefaultStopGrace)
	case slots.Exited, slots.Prepared:
		if err := s.Rejections.Record(ctx, rackv1alpha1.LayerAgent, slot.Spec.Namespace, &rackv1alpha1.AuditReference{
			Namespace: slot.Spec.Namespace, Name: slot.Spec.Name, UID: types.UID(slot.UID()),
		}, reason, message); rejections.IsTransient(err) {
			return err // erasing first would lose the record
		}
		if err := s.Erase(slot); err != nil {
			return err
		}
		// The free slot no longer names an instance, so its change does not queue the instances
		// that wait for it.
		s.Queue.Add(queue.Instance(slot.Spec.Namespace, slot.Spec.Name))
		return s.Pods.Enqueue(slot.Spec.Namespace)
	}
	return nil // a change of the slot queues it again
}
