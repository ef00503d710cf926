package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/faults"
)

// minimumFree is the free storage that a healthy Mac needs. With less, writes of VMs and of macOS
// itself may fail.
const minimumFree = 10 << 30

// uncheckedPause is the time between checks of a virtual machine whose instance is not in the
// cache.
const uncheckedPause = 200 * time.Millisecond

// reconcileMacNode reports the Mac, and scrubs it when its lease ends. It writes only changes.
func (a *Agent) reconcileMacNode(ctx context.Context) error {
	obj, exists, err := a.wroteNode.GetByKey(a.config.NodeName)
	if err == nil && !exists {
		klog.V(2).InfoS("MacNode of this Mac does not exist yet", "node", a.config.NodeName)
		return nil
	}
	if err != nil {
		return err
	}
	macNode := obj.(*rackv1alpha1.MacNode)
	info, err := a.config.Host.Info()
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	// Only the cache counts: the agent's own write would expire, and the quarantine with it.
	cached, err := a.macNodes.Get(a.config.NodeName)
	if err != nil {
		return err
	}
	if err := a.recover(cached, info); err != nil {
		return err
	}
	if lease := macNode.Status.LeaseRef; lease != nil {
		a.state.leased(lease.UID)
	}
	if err := a.clearGarbled(ctx, macNode); err != nil {
		return err
	}
	scrub, err := a.scrub(macNode)
	if err != nil {
		return err
	}
	next := macNode.DeepCopy()
	if err := a.describe(next, info, scrub); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(macNode.Status, next.Status) {
		return a.rebootIfItHelps(ctx, macNode, info)
	}
	if scrub != nil {
		faults.At("scrub: report: before")
	}
	patch, err := apiclient.StatusPatch(macNode, next)
	if err != nil {
		return err
	}
	written, err := a.config.Macrack.RackV1alpha1().MacNodes().Patch(ctx, next.Name, apiclient.PatchType, patch, metav1.PatchOptions{}, "status")
	if scrub != nil {
		faults.At("scrub: report: after")
	}
	if err == nil {
		a.wroteNode.Mutation(written)
	}
	return err
}

// recover ends the distrust of the slots after a reboot of the Mac, or after an administrator has
// ended the quarantine.
func (a *Agent) recover(macNode *rackv1alpha1.MacNode, info host.Info) error {
	u := a.state.get().Unhealthy
	if u == nil {
		return nil
	}
	quarantined := macNode.Status.Quarantine != nil
	switch {
	case u.BootID != info.BootID, u.Quarantined && !quarantined:
		klog.InfoS("Slots trusted again", "reason", u.Reason, "rebooted", u.BootID != info.BootID)
		if err := a.state.change(func(m *memory) { m.Unhealthy = nil }); err != nil {
			return err
		}
		a.enqueueAll() // instances wait for it
	case quarantined && !u.Quarantined:
		return a.state.change(func(m *memory) { m.Unhealthy.Quarantined = true })
	}
	return nil
}

// describe sets the status from the agent's observations.
func (a *Agent) describe(macNode *rackv1alpha1.MacNode, info host.Info, scrub *rackv1alpha1.ScrubReport) error {
	status := &macNode.Status
	status.BootID = info.BootID
	status.Hardware = &rackv1alpha1.MacNodeHardware{
		ModelIdentifier: info.ModelIdentifier,
		SerialNumber:    info.SerialNumber,
		CPU:             scalar.NewQuantity(info.CPU, resource.DecimalSI),
		Memory:          scalar.NewQuantity(info.Memory, resource.BinarySI),
		Storage:         scalar.NewQuantity(info.Storage, resource.BinarySI),
		FreeStorage:     scalar.NewQuantity(info.FreeStorage>>30<<30, resource.BinarySI),
		MacOSVersion:    info.MacOSVersion,
		AgentVersion:    a.config.Version,
	}
	cached, err := a.config.Images.List()
	if err != nil {
		return err
	}
	status.Images = nil
	for _, image := range cached {
		lastUsedAt := metav1.NewTime(image.LastUsedAt).Rfc3339Copy()
		status.Images = append(status.Images, rackv1alpha1.CachedImage{
			Name: image.Name, Digest: image.Digest, SizeBytes: image.Bytes, LastUsedAt: &lastUsedAt,
		})
	}
	status.ImageChecks = a.checks.list()
	if scrub != nil {
		status.Scrub = scrub
	}
	a.setSlotsHealthy(macNode, info)
	if info.FreeStorage < minimumFree {
		a.setCondition(macNode, rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionFalse, "DiskFull",
			fmt.Sprintf("less than %d GiB of storage is free", minimumFree>>30))
	} else {
		a.setCondition(macNode, rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree", "")
	}
	switch report := status.Scrub; {
	case report == nil:
	case len(report.Remaining) > 0:
		a.setCondition(macNode, rackv1alpha1.MacNodeScrubbed, metav1.ConditionFalse, rackv1alpha1.ReasonScrubFailed,
			fmt.Sprintf("%d files of the last tenant remain", len(report.Remaining)))
	default:
		a.setCondition(macNode, rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft",
			fmt.Sprintf("all files of the tenant of lease %s are erased", report.LeaseUID))
	}
	return nil
}

func (a *Agent) setSlotsHealthy(macNode *rackv1alpha1.MacNode, info host.Info) {
	status, reason, message := metav1.ConditionTrue, "SlotsObtainable", ""
	unhealthy := func(r, m string) { status, reason, message = metav1.ConditionFalse, r, m }
	for _, slot := range a.slots.Statuses() {
		if slot.Phase == slots.Silent {
			unhealthy(rackv1alpha1.ReasonCannotReattach, fmt.Sprintf("slot %d: %v", slot.Slot, slot.Err))
		}
	}
	if report := macNode.Status.Scrub; report != nil && len(report.Remaining) > 0 {
		unhealthy(rackv1alpha1.ReasonScrubFailed, fmt.Sprintf("%d files of the last tenant remain", len(report.Remaining)))
	}
	if u := a.state.get().Unhealthy; u != nil {
		unhealthy(u.Reason, u.Message)
	}
	if unknown := a.unknownVMs(); unknown != "" {
		unhealthy(rackv1alpha1.ReasonUnknownInstance, unknown)
	}
	if info.SerialNumber != macNode.Spec.SerialNumber {
		unhealthy(rackv1alpha1.ReasonSerialMismatch, fmt.Sprintf("the Mac has serial number %s, the MacNode has %s", info.SerialNumber, macNode.Spec.SerialNumber))
	}
	if _, found := a.unchecked(); found && status == metav1.ConditionTrue {
		// An agent that has just started does not vouch for a virtual machine whose instance it has
		// not looked up yet.
		a.queue.AddAfter(key{kind: macNodeKey}, uncheckedPause)
		return
	}
	a.setCondition(macNode, rackv1alpha1.MacNodeSlotsHealthy, status, reason, message)
}

func (a *Agent) setCondition(macNode *rackv1alpha1.MacNode, name string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&macNode.Status.Conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: message,
		ObservedGeneration: macNode.Generation, LastTransitionTime: a.now(),
	})
}

// clearGarbled erases unreadable slots in which nothing runs. If one held an instance, that
// instance's next reconciliation reports its VM as missing.
func (a *Agent) clearGarbled(ctx context.Context, macNode *rackv1alpha1.MacNode) error {
	for _, slot := range a.slots.Statuses() {
		if slot.Phase != slots.Garbled {
			continue
		}
		klog.ErrorS(slot.Err, "Erasing slot with unreadable files", "slot", slot.Slot)
		if lease := macNode.Status.LeaseRef; lease != nil {
			message := fmt.Sprintf("slot %d held unreadable files; no virtual machine ran there, and the slot was erased: %v", slot.Slot, slot.Err)
			if err := a.recordRejection(ctx, rackv1alpha1.LayerAgent, lease.Namespace, nil, reasonGarbledSlot, message); isTransient(err) {
				return err
			}
		}
		if err := a.erase(slot); err != nil {
			return err
		}
		a.enqueueAll() // the slot may have held an instance
	}
	return nil
}

// scrub removes the remaining files of the tenant once the lease is being released and no virtual
// machine is left. It returns nil if the scrub is not due yet.
func (a *Agent) scrub(macNode *rackv1alpha1.MacNode) (*rackv1alpha1.ScrubReport, error) {
	lease := macNode.Status.LeaseRef
	if macNode.Status.ReleasingSince == nil || lease == nil {
		return nil, nil
	}
	if done := macNode.Status.Scrub; done != nil && done.LeaseUID == lease.UID && len(done.Remaining) == 0 {
		return nil, nil
	}
	a.starting.Lock()
	defer a.starting.Unlock()
	for _, slot := range a.slots.Statuses() {
		if slot.Phase != slots.Free {
			return nil, nil // a change of the slot queues it again
		}
	}
	here, err := a.instancesHere(lease.Namespace)
	if err != nil {
		return nil, err
	}
	for _, instance := range here {
		if !rules.InstanceEnded(instance.Status.Phase) {
			return nil, nil // its end is reported first
		}
	}
	faults.At("scrub: begins")
	if err := a.slots.EraseFree(); err != nil {
		klog.ErrorS(err, "Failed to remove all files in scrub")
	}
	faults.At("scrub: erased")
	remaining, err := a.slots.Leftovers()
	if err != nil {
		return nil, err
	}
	images, err := a.removePrivateImages()
	if err != nil {
		return nil, err
	}
	remaining = append(remaining, images...)
	if err := a.state.keep(); err != nil {
		return nil, err
	}
	memory := a.state.get()
	return &rackv1alpha1.ScrubReport{LeaseUID: lease.UID, FinishedAt: a.now(), Removed: memory.report(), Remaining: bounded(remaining)}, nil
}

func bounded(list []string) []string {
	if len(list) <= maxErased {
		return list
	}
	return append(slices.Clone(list[:maxErased-1]), fmt.Sprintf("and %d more", len(list)-maxErased+1))
}

// removePrivateImages removes the images that were pulled with the tenant's credentials, partial
// pulls included. It returns those that remain.
func (a *Agent) removePrivateImages() ([]string, error) {
	cached, err := a.config.Images.List()
	if err != nil {
		return nil, err
	}
	unfinished, err := a.config.Images.Unfinished()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, image := range append(cached, unfinished...) {
		if !image.Private {
			continue
		}
		name := "images/" + image.Name
		a.state.remember(name)
		if err := a.config.Images.Remove(image.Name); err != nil {
			left = append(left, name)
			continue
		}
	}
	return left, nil
}
