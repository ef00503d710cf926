package macosinstance

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/txn"
)

// end frees the slot and the index keys of an instance that ends.
func (p *planner) end(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	if new.Status.MachineID != "" && !requestuser.IsAgent(ctx) && !requestuser.IsAdministrator(ctx) {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("only the agent of Mac %q can report that the virtual machine has stopped; request a stop with the subresource stop", new.Status.NodeName))
	}
	// The clock of a Mac may be wrong, and the instance is deleted some time after this.
	new.Status.StoppedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	new.Status.IPAddress = nil
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, new.Namespace, new.Spec.LeaseName, lease); err != nil {
		return err
	}
	mine := func(slot rack.LeaseSlot) bool { return slot.UID == new.UID }
	if !slices.ContainsFunc(lease.Status.Instances, mine) {
		return apierrors.NewInternalError(fmt.Errorf("instance %s/%s has no slot of lease %q", new.Namespace, new.Name, lease.Name))
	}
	lease.Status.Instances = slices.DeleteFunc(lease.Status.Instances, mine)
	if err := tx.Update(ctx, macnodelease.Resource, lease); err != nil {
		return err
	}
	for _, key := range [][2]string{
		{IndexMachineID, new.Status.MachineID},
		{IndexMACAddress, new.Status.MACAddress},
		{macosimage.IndexUse, macosimage.UseID(new.Spec.ImageName, new.UID)},
	} {
		if key[1] == "" {
			continue
		}
		if _, exists, err := tx.GetKey(ctx, key[0], key[1]); err != nil {
			return err
		} else if exists {
			if err := tx.DeleteKey(key[0], key[1]); err != nil {
				return err
			}
		}
	}
	if !counts(old) {
		return nil
	}
	return p.count(ctx, tx, new, -1, ledger.NewInstanceStopped)
}
