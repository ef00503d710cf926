package restore

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
	for _, w := range m.witness.Instances {
		namespace := m.witness.LeaseRef.Namespace
		existing := &instance.MacOSInstance{}
		err := tx.Get(ctx, macosinstance.Resource, namespace, w.Name, existing)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err != nil {
			existing = nil
		}
		switch {
		case existing != nil && existing.UID != w.UID:
			return nil, m.conflict("namespace %q has another instance %q (UID %s) than the one that the Mac serves (UID %s); delete it first", namespace, w.Name, existing.UID, w.UID)
		case existing != nil && rules.InstanceEnded(existing.Status.Phase):
			return nil, m.conflict("instance %s/%s has ended on the server, but the Mac serves it; delete it first", namespace, w.Name)
		case existing != nil && existing.Status.StartGrantedAt != nil:
			continue
		}
		for _, id := range [][2]string{{macosinstance.IndexMachineID, w.MachineID}, {macosinstance.IndexMACAddress, w.MACAddress}} {
			if owner, taken, err := tx.GetKey(ctx, id[0], id[1]); err != nil {
				return nil, err
			} else if taken {
				return nil, m.conflict("the identity %s of instance %s/%s belongs to instance %s; stop that first", id[1], namespace, w.Name, owner)
			}
		}
		text := fmt.Sprintf("create instance %s/%s (UID %s), whose virtual machine runs on the Mac", namespace, w.Name, w.UID)
		if existing != nil {
			text = fmt.Sprintf("grant the start of instance %s/%s (UID %s), whose virtual machine runs on the Mac", namespace, w.Name, w.UID)
		}
		steps = append(steps, step{text, func(ctx context.Context, tx *txn.Tx) error { return m.start(ctx, tx, w, existing) }})
	}
	return steps, nil
}

// start gives an instance of the lease its slot and its identity, and counts its virtual machine.
func (m *mac) start(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance, existing *instance.MacOSInstance) error {
	lease := m.lease
	if existing == nil {
		resources, err := m.resources(ctx, tx, w)
		if err != nil {
			return err
		}
		taken := make([]string, 0, len(lease.Status.Instances))
		for _, slot := range lease.Status.Instances {
			taken = append(taken, slot.Name)
		}
		if err := rules.CheckSlot(lease.Name, taken); err != nil {
			return m.conflict("%w", err)
		}
		lease.Status.Instances = append(lease.Status.Instances, rack.LeaseSlot{Name: w.Name, UID: w.UID, Resources: resources})
		if err := tx.Update(ctx, macnodelease.Resource, lease); err != nil {
			return err
		}
		existing = m.newInstance(w)
		if err := m.grant(ctx, tx, w, existing, tx.Create); err != nil {
			return err
		}
		if err := tx.CreateKey(macosimage.IndexUse, macosimage.UseID(w.ImageName, w.UID), []byte(lease.Namespace+"/"+w.Name)); err != nil {
			return err
		}
	} else {
		if !slices.ContainsFunc(lease.Status.Instances, func(slot rack.LeaseSlot) bool { return slot.UID == w.UID }) {
			return m.conflict("instance %s/%s has no slot of lease %q", existing.Namespace, existing.Name, lease.Name)
		}
		if err := m.grant(ctx, tx, w, existing, tx.Update); err != nil {
			return err
		}
	}
	m.node.Status.RunningVMs++
	if err := rules.CheckRunning(m.node.Name, m.node.Status.RunningVMs); err != nil {
		return m.conflict("%w", err)
	}
	record := ledger.NewInstanceStarted(existing, lease, m.node.Status.RunningVMs)
	record.Details.Message = "restored from the witness of the Mac"
	return m.record(ctx, tx, record)
}

// resources returns the resources of a witnessed instance, according to the catalogue.
func (m *mac) resources(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance) (rack.MachineResources, error) {
	class := &instance.InstanceClass{}
	err := tx.Get(ctx, instance.Resource("instanceclasses"), "", w.ClassName, class)
	if apierrors.IsNotFound(err) {
		return rack.MachineResources{}, m.conflict("there is no InstanceClass %q, which instance %q has; create the catalogue first", w.ClassName, w.Name)
	}
	return rack.MachineResources(class.Spec.Resources), err
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
	meta.SetStatusCondition(&i.Status.Conditions, metav1.Condition{
		Type: instance.MacOSInstanceScheduledCondition, Status: metav1.ConditionFalse, Reason: instance.ReasonRestored,
		Message: "the instance was restored and gets a new placeholder pod", LastTransitionTime: metav1.NewTime(m.now),
	})
	if mac := meta.FindStatusCondition(m.lease.Status.Conditions, rack.MacNodeLeaseConditionMacReady); mac != nil {
		meta.SetStatusCondition(&i.Status.Conditions, *mac)
	}
	return i
}

// grant gives an instance the identity of its virtual machine and the grant of its start, and
// writes it.
func (m *mac) grant(ctx context.Context, tx *txn.Tx, w rack.WitnessedInstance, i *instance.MacOSInstance, write writer) error {
	s := &i.Status
	s.Phase, s.Message = instance.MacOSInstanceStarting, "restored from the witness of the Mac"
	s.MachineID, s.MACAddress = w.MachineID, w.MACAddress
	if s.StartGrantedAt = w.StartGrantedAt.DeepCopy(); s.StartGrantedAt == nil {
		s.StartGrantedAt = ptr.To(metav1.NewTime(m.now))
	}
	owner := []byte(i.Namespace + "/" + i.Name)
	for _, id := range [][2]string{{macosinstance.IndexMachineID, w.MachineID}, {macosinstance.IndexMACAddress, w.MACAddress}} {
		if err := tx.CreateKey(id[0], id[1], owner); err != nil {
			return err
		}
	}
	macosinstance.DeriveConditions(i, m.now)
	return write(ctx, macosinstance.Resource, i)
}
