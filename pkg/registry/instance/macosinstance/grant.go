package macosinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// grant grants the start of the virtual machine of an instance. From here on it counts as running,
// which is recorded before its agent may launch it.
func (p *planner) grant(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	// An instance that got its identity from a version without grants may already be running. It is
	// counted regardless of its state.
	if !hasIdentity(old) {
		if new.Status.StopRequest != nil || new.DeletionTimestamp != nil {
			return apierrors.NewConflict(Resource, new.Name, errors.New("the instance is stopping, so its virtual machine may not start"))
		}
		if new.Status.Phase != instance.MacOSInstanceStarting || new.Status.StartedAt != nil {
			return p.reject(new, nil, "StartNotGranted", fmt.Errorf("a virtual machine may start only after its start was granted: report a machine ID and a MAC address in phase %s first, and launch it once that is accepted",
				instance.MacOSInstanceStarting))
		}
	}
	new.Status.StartGrantedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	return p.count(ctx, tx, new, 1, ledger.NewInstanceStarted)
}

// claimIdentity claims a machine ID and a MAC address for an instance, unless another instance in
// the fleet has them.
func (p *planner) claimIdentity(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	for _, id := range []struct{ kind, what, old, new string }{
		{IndexMachineID, "machine ID", old.Status.MachineID, new.Status.MachineID},
		{IndexMACAddress, "MAC address", old.Status.MACAddress, new.Status.MACAddress},
	} {
		if id.old == id.new {
			continue
		}
		if id.old != "" {
			return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("its %s is %s and never changes", id.what, id.old))
		}
		_, taken, err := tx.GetKey(ctx, id.kind, id.new)
		if err != nil {
			return err
		}
		if taken {
			return apierrors.NewConflict(Resource, new.Name, fmt.Errorf("the %s %s belongs to another instance and must be unique in the fleet; generate a new one", id.what, id.new))
		}
		if err := tx.CreateKey(id.kind, id.new, []byte(new.Namespace+"/"+new.Name)); err != nil {
			return err
		}
	}
	return nil
}

// count changes the number of running virtual machines of the instance's Mac, and records it.
func (p *planner) count(ctx context.Context, tx *txn.Tx, new *instance.MacOSInstance, by int32, record func(*instance.MacOSInstance, *rack.MacNodeLease, int32) *rack.AuditRecord) error {
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, new.Namespace, new.Spec.LeaseName, lease); err != nil {
		return err
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", new.Status.NodeName, node); err != nil {
		return err
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		return p.reject(new, lease, "MacIsNotLeased", fmt.Errorf("%s: Mac %q does not belong to the instance's lease", rules.OneTenantPerChassis, node.Name))
	}
	if by > 0 && new.Status.StartedAt == nil {
		if q := node.Status.Quarantine; q != nil {
			return p.reject(new, lease, "MacQuarantined", fmt.Errorf("Mac %q is in quarantine (%s); reboot it, or ask an administrator to end the quarantine", node.Name, q.Reason))
		}
		if macnode.Unconfirmed(node) {
			// Not a refusal of the tenant's request: each restart of all API servers has this
			// effect.
			return apierrors.NewConflict(Resource, new.Name, fmt.Errorf("the agent of Mac %q has not reported its witness since the API server may have been restored from a backup; report it first", node.Name))
		}
		if node.Status.ReleasingSince != nil {
			return p.reject(new, lease, "MacReleasing", fmt.Errorf("Mac %q is being released and starts no virtual machine", node.Name))
		}
	}
	node.Status.RunningVMs += by
	if by < 0 {
		// A virtual machine runs only in a slot, and this one has left its own. An older API server
		// may have counted one twice.
		others := slices.DeleteFunc(slices.Clone(lease.Status.Instances), func(slot rack.LeaseSlot) bool { return slot.UID == new.UID })
		node.Status.RunningVMs = min(node.Status.RunningVMs, int32(len(others)))
	}
	if err := rules.CheckRunning(node.Name, node.Status.RunningVMs); err != nil {
		return p.reject(new, lease, "ThirdVM", err)
	}
	if err := macnode.Append(ctx, tx, p.clock, node, record(new, lease, node.Status.RunningVMs)); err != nil {
		return err
	}
	return tx.Update(ctx, macnode.Resource, node)
}

// hasIdentity reports whether an instance has a machine ID and a MAC address, which its virtual
// machine needs to start.
func hasIdentity(i *instance.MacOSInstance) bool {
	return i.Status.MachineID != "" && i.Status.MACAddress != ""
}

// counts reports whether the virtual machine of an instance counts as running on its Mac: from the
// grant of its start until its end. An instance from a version without grants counts if it has
// started.
func counts(i *instance.MacOSInstance) bool {
	return (i.Status.StartGrantedAt != nil || i.Status.StartedAt != nil) && !rules.InstanceEnded(i.Status.Phase)
}
