package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// unknownVM is a running virtual machine without an instance. A finalizer keeps an instance while
// its virtual machine may run, so the API has lost state. The agent does not stop such a VM by
// itself: the Mac is quarantined, and an administrator decides.
type unknownVM struct {
	uid, name string
	since     time.Time
	why       string
}

// syncUnknown handles a virtual machine without an instance. live is the API's object of that name,
// or nil.
func (a *Agent) syncUnknown(ctx context.Context, live *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	if slot.Phase != slots.Attached && slot.Phase != slots.Silent {
		// The VM has ended. The end is reported before the slot is erased, so this is normal after
		// a crash.
		a.forgetUnknown(slot)
		return a.reap(ctx, slot, reasonUnknownInstance, "the files of a virtual machine without a MacOSInstance were erased; it had ended")
	}
	if a.isToEnd(slot.UID()) {
		return a.reap(ctx, slot, reasonUnknownInstance, "a virtual machine on the Mac had no MacOSInstance; an administrator had it stopped and erased")
	}
	why := "the API has no such instance"
	if live != nil && string(live.UID) != slot.UID() {
		why = fmt.Sprintf("the API has another instance of that name (UID %s)", live.UID)
	} else if live != nil {
		why = fmt.Sprintf("the API has the instance on Mac %q", live.Status.NodeName)
	}
	unknown := unknownVM{uid: slot.UID(), name: slot.Spec.Namespace + "/" + slot.Spec.Name, since: a.config.Clock.Now(), why: why}
	if slot.State != nil && slot.State.StartedAt != nil {
		unknown.since = *slot.State.StartedAt
	}
	a.mu.Lock()
	before, known := a.unknown[slot.Slot]
	if known && before.uid == unknown.uid {
		unknown.since = before.since
	}
	a.unknown[slot.Slot] = unknown
	a.mu.Unlock()
	if before != unknown {
		klog.InfoS("Running VM has no instance; VM kept and Mac quarantined", "instance", unknown.name, "uid", unknown.uid, "slot", slot.Slot, "why", why)
		a.queue.Add(key{kind: macNodeKey})
	}
	return nil
}

// isToEnd reports whether an administrator wants an unknown virtual machine to stop.
func (a *Agent) isToEnd(uid string) bool {
	macNode, err := a.macNodes.Get(a.config.NodeName)
	return err == nil && macNode.Status.Quarantine != nil && slices.Contains(macNode.Status.Quarantine.EndInstances, uid)
}

func (a *Agent) forgetUnknown(slot slots.Status) {
	a.mu.Lock()
	_, known := a.unknown[slot.Slot]
	delete(a.unknown, slot.Slot)
	a.mu.Unlock()
	if known {
		a.enqueueAll() // instances wait for the slot, and the MacNode may never have reported the VM
	}
}

// unknownVMs describes the running virtual machines that have no instance; it returns an empty
// string without any.
func (a *Agent) unknownVMs() string {
	var found []string
	for _, slot := range a.slots.Statuses() {
		a.mu.Lock()
		unknown, ok := a.unknown[slot.Slot]
		a.mu.Unlock()
		if ok && slot.UID() == unknown.uid {
			found = append(found, fmt.Sprintf("slot %d has run %s (UID %s) since %s, and %s", slot.Slot, unknown.name, unknown.uid, unknown.since.UTC().Format(time.RFC3339), unknown.why))
		}
	}
	return strings.Join(found, "; ")
}

// unchecked returns a slot whose virtual machine has no instance in the cache: it may be unknown.
func (a *Agent) unchecked() (slots.Status, bool) {
	for _, slot := range a.slots.Statuses() {
		if slot.Spec == nil || slot.Phase != slots.Attached && slot.Phase != slots.Silent {
			continue
		}
		instance, err := a.instances.MacOSInstances(slot.Spec.Namespace).Get(slot.Spec.Name)
		if err != nil || string(instance.UID) != slot.UID() || instance.Status.NodeName != a.config.NodeName {
			return slot, true
		}
	}
	return slots.Status{}, false
}
