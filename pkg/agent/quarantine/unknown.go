package quarantine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/teardown"
	"macrack.io/macrack/pkg/agent/witness"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// MismatchConfig configures Mismatches.
type MismatchConfig struct {
	Slots     *slots.Manager
	Instances *objects.Instances
	MacNode   *objects.MacNode
	Stopper   *teardown.Stopper
	Queue     *queue.Queue[queue.Key]
	Clock     clock.PassiveClock
	// EnqueueAll queues all objects of the Mac.
	EnqueueAll func()
	Witness    *witness.Keeper
}

// Mismatches handles the virtual machines on the Mac that do not belong to the instance whose name
// they have.
type Mismatches struct {
	MismatchConfig
	unknown [rules.MaxVMsPerMac]unknownSlot
}

// NewMismatches returns Mismatches.
func NewMismatches(config MismatchConfig) *Mismatches { return &Mismatches{MismatchConfig: config} }

// unknownSlot holds the running virtual machine without an instance in one slot, if any.
type unknownSlot struct {
	mu sync.Mutex
	vm *unknownVM
}

func (s *unknownSlot) get() *unknownVM {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vm
}

// set stores a virtual machine and reports whether it differs from the stored one. The time since
// which a virtual machine runs stays the same.
func (s *unknownSlot) set(vm unknownVM) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vm != nil && s.vm.uid == vm.uid {
		vm.since = s.vm.since
	}
	changed = s.vm == nil || *s.vm != vm
	s.vm = &vm
	return changed
}

// forget reports whether there was a virtual machine.
func (s *unknownSlot) forget() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.vm != nil
	s.vm = nil
	return known
}

// unknownVM is a running virtual machine without an instance. A finalizer keeps an instance while
// its virtual machine may run, so the API has lost state. The agent does not stop such a VM by
// itself: the Mac is quarantined, and an administrator decides.
type unknownVM struct {
	uid, name string
	since     time.Time
	why       string
}

// Sync handles the virtual machines with the name of an instance that do not belong to it: it stops
// copies, and quarantines the Mac for a virtual machine without an instance.
func (m *Mismatches) Sync(ctx context.Context, name types.NamespacedName, instance *instancev1alpha1.MacOSInstance) error {
	var errs []error
	for _, slot := range m.Slots.Statuses() {
		switch {
		case slot.Spec == nil || slot.Spec.Namespace != name.Namespace || slot.Spec.Name != name.Name:
		case m.Stopper.Mismatch(instance, slot) != "":
			errs = append(errs, m.SyncSlot(ctx, slot))
		default:
			m.forget(slot)
		}
	}
	return errors.Join(errs...)
}

var messages = map[string]string{
	rejections.ReasonDuplicateIdentity: "a second virtual machine on the Mac was a copy of that of the MacOSInstance; it was stopped and erased",
	rejections.ReasonForeignIdentity:   "a virtual machine on the Mac did not have the machine ID or MAC address of its MacOSInstance; it was stopped and erased",
}

// SyncSlot stops a copy of an instance's virtual machine and erases it after the rejection is
// recorded. A VM without an instance continues to run: see unknownVM. SyncSlot reads the API,
// because the cache may be stale.
func (m *Mismatches) SyncSlot(ctx context.Context, slot slots.Status) error {
	confirmed := m.Witness.Confirmed() // before the read, because a restore may end meanwhile
	live, err := m.Instances.Live(ctx, slot.Spec.Namespace, slot.Spec.Name)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // not in the API, or on another Mac
		live = nil
	} else if err != nil {
		return err
	}
	why := m.Stopper.Mismatch(live, slot)
	if why == rejections.ReasonUnknownInstance {
		return m.syncUnknown(ctx, live, slot, confirmed)
	}
	m.forget(slot)
	if why == "" {
		return nil
	}
	if err := m.Witness.Confirm(ctx); err != nil {
		return err
	}
	return m.Stopper.Reap(ctx, slot, why, messages[why])
}

// syncUnknown handles a virtual machine without an instance. live is the API's object of that name,
// or nil. confirmed is Witness.Confirmed from before it was read.
func (m *Mismatches) syncUnknown(ctx context.Context, live *instancev1alpha1.MacOSInstance, slot slots.Status, confirmed bool) error {
	ended := slot.Phase != slots.Attached && slot.Phase != slots.Unreachable
	if ended || !m.stopApproved(slot.UID()) {
		// The server may have lost the instance, and a restore brings it back. The quarantine for
		// the loss then ends, but one for an unknown instance would not.
		if !confirmed {
			m.forget(slot)
			return nil
		}
		if err := m.Witness.Confirm(ctx); err != nil {
			return err
		}
	}
	if ended {
		// The end is reported before the slot is erased, so this is normal after a crash.
		m.forget(slot)
		return m.Stopper.Reap(ctx, slot, rejections.ReasonUnknownInstance, "the files of a virtual machine without a MacOSInstance were erased; it had ended")
	}
	if m.stopApproved(slot.UID()) {
		return m.Stopper.Reap(ctx, slot, rejections.ReasonUnknownInstance, "a virtual machine on the Mac had no MacOSInstance; it was stopped and erased at the request of an administrator")
	}
	why := "the API has no such instance"
	if live != nil && string(live.UID) != slot.UID() {
		why = fmt.Sprintf("the API has another instance of that name (UID %s)", live.UID)
	} else if live != nil {
		why = fmt.Sprintf("the API has the instance on Mac %q", live.Status.NodeName)
	}
	unknown := unknownVM{uid: slot.UID(), name: slot.Spec.Namespace + "/" + slot.Spec.Name, since: m.Clock.Now(), why: why}
	if slot.State != nil && slot.State.StartedAt != nil {
		unknown.since = *slot.State.StartedAt
	}
	if m.unknown[slot.Slot].set(unknown) {
		klog.InfoS("Running VM has no instance; VM kept and Mac quarantined", "instance", unknown.name, "uid", unknown.uid, "slot", slot.Slot, "why", why)
		m.Queue.Add(queue.MacNode())
	}
	return nil
}

// stopApproved reports whether an administrator wants an unknown virtual machine to stop.
func (m *Mismatches) stopApproved(uid string) bool {
	macNode, err := m.MacNode.Cached()
	return err == nil && macNode.Status.Quarantine != nil && slices.Contains(macNode.Status.Quarantine.EndInstances, uid)
}

func (m *Mismatches) forget(slot slots.Status) {
	if m.unknown[slot.Slot].forget() {
		m.EnqueueAll() // instances wait for the slot, and the MacNode may never have reported the VM
	}
}

// Unknown describes the running virtual machines that have no instance; it returns an empty string
// without any.
func (m *Mismatches) Unknown() string {
	var found []string
	for _, slot := range m.Slots.Statuses() {
		if vm := m.unknown[slot.Slot].get(); vm != nil && slot.UID() == vm.uid {
			found = append(found, fmt.Sprintf("slot %d has run %s (UID %s) since %s, and %s", slot.Slot, vm.name, vm.uid, vm.since.UTC().Format(time.RFC3339), vm.why))
		}
	}
	return strings.Join(found, "; ")
}

// Unchecked returns a slot whose virtual machine has no instance in the cache: it may be unknown.
func (m *Mismatches) Unchecked() (slots.Status, bool) {
	for _, slot := range m.Slots.Statuses() {
		if slot.Spec == nil || slot.Phase != slots.Attached && slot.Phase != slots.Unreachable {
			continue
		}
		instance, err := m.Instances.Cached(slot.Spec.Namespace, slot.Spec.Name)
		if err != nil || string(instance.UID) != slot.UID() || !m.Instances.Here(instance) {
			return slot, true
		}
	}
	return slots.Status{}, false
}
