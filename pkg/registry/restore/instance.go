package restore

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// planInstances returns the steps that give the lease the instances that the Mac serves.
func (m *mac) planInstances(ctx context.Context, tx *txn.Tx) ([]step, error) {
	var steps []step
	var slots []string
	if m.lease != nil {
		for _, slot := range m.lease.Status.Instances {
			slots = append(slots, slot.Name)
		}
	}
	for _, w := range m.witness.Instances {
		existing, err := m.existing(ctx, tx, w)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("instance %s/%s (UID %s), whose virtual machine runs on the Mac", m.witness.LeaseRef.Namespace, w.Name, w.UID)
		switch {
		case existing == nil:
			resources, err := m.checkCatalogue(ctx, tx, w)
			if err != nil {
				return nil, err
			}
			if err := rules.CheckSlot(m.witness.LeaseRef.Name, slots); err != nil {
				return nil, m.conflict("instance %q has no slot: %w", w.Name, err)
			}
			slots = append(slots, w.Name)
			steps = append(steps, step{"create " + name, func(ctx context.Context, tx *txn.Tx) error { return m.createInstance(ctx, tx, w, resources) }})
		case existing.Status.StartGrantedAt == nil:
			steps = append(steps, step{"grant the start of " + name, func(ctx context.Context, tx *txn.Tx) error { return m.grant(ctx, tx, w, existing, tx.Update) }})
		case m.needsPod(existing):
			steps = append(steps, step{"check the placeholder pod of " + name, func(ctx context.Context, tx *txn.Tx) error {
				m.replacePod(existing)
				return tx.Update(ctx, macosinstance.Resource, existing)
			}})
		}
	}
	return steps, nil
}

// existing returns the instance on the server; nil without one. It refuses an instance that is not
// the one that the Mac serves.
func (m *mac) existing(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance) (*instance.MacOSInstance, error) {
	namespace := m.witness.LeaseRef.Namespace
	for _, id := range [][2]string{{macosinstance.IndexMachineID, w.MachineID}, {macosinstance.IndexMACAddress, w.MACAddress}} {
		if owner, taken, err := tx.GetKey(ctx, id[0], id[1]); err != nil {
			return nil, err
		} else if taken && string(owner) != namespace+"/"+w.Name {
			return nil, m.conflict("the identity %s of instance %s/%s belongs to instance %s; stop that first", id[1], namespace, w.Name, owner)
		}
	}
	i := &instance.MacOSInstance{}
	if err := tx.Get(ctx, macosinstance.Resource, namespace, w.Name, i); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	s := i.Status
	hasSlot := m.lease != nil && slices.ContainsFunc(m.lease.Status.Instances, func(slot rack.LeaseSlot) bool { return slot.UID == w.UID })
	switch {
	case i.UID != w.UID:
		return nil, m.conflict("namespace %q has another instance %q (UID %s) than the one that the Mac serves (UID %s); delete it first", namespace, w.Name, i.UID, w.UID)
	case rules.InstanceEnded(s.Phase):
		return nil, m.conflict("instance %s/%s has ended on the server, but the Mac serves it; delete it first", namespace, w.Name)
	case s.MachineID != "" && s.MachineID != w.MachineID || s.MACAddress != "" && s.MACAddress != w.MACAddress:
		return nil, m.conflict("instance %s/%s has another identity on the server than on the Mac; inspect the Mac", namespace, w.Name)
	case !hasSlot:
		return nil, m.conflict("instance %s/%s has no slot of %s; inspect the Mac", namespace, w.Name, m.leaseRef())
	}
	return i, nil
}

// checkCatalogue returns the resources of a witnessed instance. It refuses an instance whose class
// or image is not in the catalogue.
func (m *mac) checkCatalogue(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance) (rack.MachineResources, error) {
	class := &instance.InstanceClass{}
	err := tx.Get(ctx, instance.Resource("instanceclasses"), "", w.ClassName, class)
	if apierrors.IsNotFound(err) {
		return rack.MachineResources{}, m.conflict("there is no InstanceClass %q, which instance %q has; create the catalogue first", w.ClassName, w.Name)
	}
	if err == nil {
		err = tx.Get(ctx, macosimage.Resource, "", w.ImageName, &image.MacOSImage{})
	}
	if apierrors.IsNotFound(err) {
		return rack.MachineResources{}, m.conflict("there is no MacOSImage %q, which instance %q has; create the catalogue first", w.ImageName, w.Name)
	}
	return rack.MachineResources(class.Spec.Resources), err
}

// stops reports whether the lease became Held while the instance existed, so that it must stop.
func (m *mac) stops(w rack.WitnessedInstance) bool {
	held := m.lease.Status.HeldAt
	return held != nil && !held.Before(w.StartGrantedAt)
}

// createInstance creates an instance with its slot of the lease.
func (m *mac) createInstance(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance, resources rack.MachineResources) error {
	m.lease.Status.Instances = append(m.lease.Status.Instances, rack.LeaseSlot{Name: w.Name, UID: w.UID, Resources: resources, Stop: m.stops(w)})
	if err := tx.Update(ctx, macnodelease.Resource, m.lease); err != nil {
		return err
	}
	if err := tx.CreateKey(macosimage.IndexUse, macosimage.UseID(w.ImageName, w.UID), []byte(m.lease.Namespace+"/"+w.Name)); err != nil {
		return err
	}
	return m.grant(ctx, tx, w, m.newInstance(w), tx.Create)
}

// newInstance returns a restored instance without its identity.
func (m *mac) newInstance(w rack.WitnessedInstance) *instance.MacOSInstance {
	i := &instance.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.lease.Namespace, Name: w.Name, UID: w.UID, CreationTimestamp: metav1.NewTime(m.now), Generation: 1,
			Finalizers:      []string{rules.FinalizerVM},
			OwnerReferences: []metav1.OwnerReference{macosinstance.LeaseReference(m.lease.Name, m.lease.UID)},
		},
		Spec: instance.MacOSInstanceSpec{
			LeaseName: m.lease.Name, ClassName: w.ClassName, ImageName: w.ImageName,
			Resources: instance.InstanceResources{Requests: instance.ResourceList{rules.ResourceMacOSVM: scalar.MustParse("1")}},
		},
		Status: instance.MacOSInstanceStatus{
			NodeName: m.node.Name, SerialNumber: m.node.Spec.SerialNumber, NamespaceUID: m.lease.Status.NamespaceUID,
		},
	}
	if mac := meta.FindStatusCondition(m.lease.Status.Conditions, rack.MacNodeLeaseConditionMacReady); mac != nil {
		meta.SetStatusCondition(&i.Status.Conditions, *mac)
	}
	return i
}

// needsPod reports whether an instance may still have the placeholder pod from before the loss,
// which the garbage collector may have deleted meanwhile.
func (m *mac) needsPod(i *instance.MacOSInstance) bool {
	c := meta.FindStatusCondition(i.Status.Conditions, instance.MacOSInstanceScheduledCondition)
	return c == nil || c.LastTransitionTime.Before(&m.node.Status.Quarantine.Since)
}

// replacePod makes the controllers create a placeholder pod under a new name, unless the present
// one has survived.
func (m *mac) replacePod(i *instance.MacOSInstance) {
	meta.RemoveStatusCondition(&i.Status.Conditions, instance.MacOSInstanceScheduledCondition) // for a new time
	meta.SetStatusCondition(&i.Status.Conditions, metav1.Condition{
		Type: instance.MacOSInstanceScheduledCondition, Status: metav1.ConditionFalse, Reason: instance.ReasonRestored,
		Message: rules.MessageRestored, LastTransitionTime: metav1.NewTime(m.now),
	})
	macosinstance.DeriveConditions(i, m.now)
}

// grant gives an instance the identity of its virtual machine and the grant of its start, and
// counts the virtual machine.
func (m *mac) grant(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance, i *instance.MacOSInstance, write writer) error {
	s := &i.Status
	owner := []byte(i.Namespace + "/" + i.Name)
	if s.MachineID == "" {
		if err := tx.CreateKey(macosinstance.IndexMachineID, w.MachineID, owner); err != nil {
			return err
		}
	}
	if s.MACAddress == "" {
		if err := tx.CreateKey(macosinstance.IndexMACAddress, w.MACAddress, owner); err != nil {
			return err
		}
	}
	s.Phase, s.Message = instance.MacOSInstanceStarting, "restored from the witness of the Mac"
	s.MachineID, s.MACAddress = w.MachineID, w.MACAddress
	if s.StartGrantedAt = w.StartGrantedAt.DeepCopy(); s.StartGrantedAt == nil || m.now.Before(s.StartGrantedAt.Time) {
		s.StartGrantedAt = ptr.To(metav1.NewTime(m.now))
	}
	m.replacePod(i)
	if err := write(ctx, macosinstance.Resource, i); err != nil {
		return err
	}
	m.node.Status.RunningVMs++
	if err := rules.CheckRunning(m.node.Name, m.node.Status.RunningVMs); err != nil {
		return m.conflict("%w", err)
	}
	record := ledger.NewInstanceStarted(i, m.lease, m.node.Status.RunningVMs)
	record.Details.Message = "restored from the witness of the Mac"
	record.Details.StartGrantedAt = s.StartGrantedAt
	return m.record(ctx, tx, record)
}
