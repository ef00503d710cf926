package restore

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// planLease returns the steps that give the Mac the lease that it serves, with its floor.
func (m *mac) planLease(ctx context.Context, tx *txn.Tx) ([]step, error) {
	w := m.witness.LeaseRef
	lease, err := getLease(ctx, tx, w.Namespace, w.Name)
	if err != nil {
		return nil, err
	}
	if lease != nil && lease.UID != w.UID {
		return nil, m.conflict("namespace %q has another lease %q (UID %s) than the one that the Mac serves (UID %s); delete it first", w.Namespace, w.Name, lease.UID, w.UID)
	}
	if lease != nil && lease.Status.NodeName != "" && lease.Status.NodeName != m.node.Name {
		return nil, m.conflict("%s was bound to Mac %q after the loss; one of the two Macs is wrong", m.leaseRef(), lease.Status.NodeName)
	}
	m.lease = lease
	if ref := m.node.Status.LeaseRef; ref != nil && ref.UID == w.UID {
		return m.planFloor(ctx, tx)
	}
	if err := m.checkFloor(ctx, tx, nil); err != nil {
		return nil, err
	}
	var steps []step
	if m.node.Status.LeaseRef != nil {
		end, err := m.planEnd(ctx, tx)
		if err != nil {
			return nil, err
		}
		steps = append(steps, end)
	}
	text := fmt.Sprintf("create %s of Mac %s, bound at %s until %s at least", m.leaseRef(), m.node.Spec.SerialNumber, rfc3339(m.boundAt), rfc3339(m.floor))
	if m.loss.LastRecordAt == nil {
		text += "; the server has no record that could disprove the time of the binding"
	}
	if lease == nil {
		return append(steps, step{text, m.create}), nil
	}
	if err := m.checkPending(); err != nil {
		return nil, err
	}
	return append(steps, step{"bind instead of " + text, m.bind}), nil
}

// planFloor returns the step that raises the floor of the lease of the Mac, if the Mac has seen a
// later one.
func (m *mac) planFloor(ctx context.Context, tx *txn.Tx) ([]step, error) {
	if m.lease == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("MacNode %q refers to %s, which does not exist", m.node.Name, m.leaseRef()))
	}
	if err := m.checkFloor(ctx, tx, m.lease.Status.BoundAt); err != nil {
		return nil, err
	}
	if !m.lease.Status.EarliestReleaseAt.Before(&m.floor) {
		return nil, nil
	}
	return []step{{fmt.Sprintf("raise the floor of %s to %s", m.leaseRef(), rfc3339(m.floor)), m.raise}}, nil
}

// checkPending refuses to bind a lease that was pending before the loss and cannot have been bound
// to this Mac.
func (m *mac) checkPending() error {
	spec := m.lease.Spec
	switch {
	case m.lease.DeletionTimestamp != nil:
		return m.conflict("%s is being deleted, and its finalizers %v keep it; remove these first", m.leaseRef(), m.lease.Finalizers)
	case spec.ClassName != m.node.Spec.ClassName:
		return m.conflict("%s asks for a Mac of class %q, not %q; inspect the Mac", m.leaseRef(), spec.ClassName, m.node.Spec.ClassName)
	case spec.SerialNumber != "" && spec.SerialNumber != m.node.Spec.SerialNumber:
		return m.conflict("%s asks for Mac %s, not %s; inspect the Mac", m.leaseRef(), spec.SerialNumber, m.node.Spec.SerialNumber)
	}
	m.floor = metav1.NewTime(rules.LeaseFloor(&m.boundAt, spec.MinimumDuration.Value(), &m.floor))
	return nil
}

// planEnd returns the step that ends the lease that the server has for the Mac. The Mac had
// released it in the lost history, before it was bound again.
func (m *mac) planEnd(ctx context.Context, tx *txn.Tx) (step, error) {
	ref := m.node.Status.LeaseRef
	stale, err := getLease(ctx, tx, ref.Namespace, ref.Name)
	if err != nil {
		return step{}, err
	}
	if stale == nil || stale.UID != ref.UID {
		return step{}, apierrors.NewInternalError(fmt.Errorf("MacNode %q refers to lease %s/%s, which does not exist", m.node.Name, ref.Namespace, ref.Name))
	}
	floor := rules.LeaseFloor(stale.Status.BoundAt, stale.Spec.MinimumDuration.Value(), stale.Status.EarliestReleaseAt)
	now, err := m.Fleet.Earliest(ctx, tx, m.now)
	if err != nil {
		return step{}, err
	}
	if err := rules.CheckSupersedes(now, floor, m.boundAt.Time); err != nil {
		return step{}, m.conflict("lease %s/%s cannot end: %w", ref.Namespace, ref.Name, err)
	}
	if len(stale.Status.Instances) > 0 {
		return step{}, m.conflict("lease %s/%s has ended on the Mac, but its instance %q has not on the server; delete the instance, wait until the agent has reported its end, then try again",
			ref.Namespace, ref.Name, stale.Status.Instances[0].Name)
	}
	return step{
		fmt.Sprintf("release lease %s/%s (UID %s), whose floor passed at %s: the Mac has been bound again since", ref.Namespace, ref.Name, ref.UID, rfc3339(metav1.NewTime(floor))),
		func(ctx context.Context, tx *txn.Tx) error { return m.end(ctx, tx, stale) },
	}, nil
}

// end deletes a lease that the Mac no longer serves.
func (m *mac) end(ctx context.Context, tx *txn.Tx, stale *rack.MacNodeLease) error {
	if err := tx.Delete(macnodelease.Resource, stale); err != nil {
		return err
	}
	macnode.Unassign(m.node)
	s := &m.node.Status
	s.Scrub, s.RunningVMs = nil, 0
	meta.RemoveStatusCondition(&s.Conditions, rack.MacNodeScrubbed)
	record := ledger.NewLeaseReleased(stale, m.now, nil)
	record.Details.Message = "released in lost history: the Mac has been bound again since"
	return m.record(ctx, tx, record)
}

// create creates the lease that the Mac serves.
func (m *mac) create(ctx context.Context, tx *txn.Tx) error {
	w := m.witness.LeaseRef
	lease := &rack.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID, CreationTimestamp: m.boundAt, Generation: 1},
		Spec: rack.MacNodeLeaseSpec{
			ClassName: m.node.Spec.ClassName, MinimumDuration: scalar.NewDuration(m.floor.Sub(m.boundAt.Time)), Caches: m.witness.Caches,
		},
	}
	if err := m.Ownership.AssignRestoredLease(ctx, tx, lease, w.NamespaceUID, m.now); err != nil {
		return err
	}
	m.fill(lease)
	if err := tx.Create(ctx, macnodelease.Resource, lease); err != nil {
		return err
	}
	return m.recordBinding(ctx, tx, lease)
}

// bind binds the lease that was pending before the loss.
func (m *mac) bind(ctx context.Context, tx *txn.Tx) error {
	m.fill(m.lease)
	if err := tx.Update(ctx, macnodelease.Resource, m.lease); err != nil {
		return err
	}
	return m.recordBinding(ctx, tx, m.lease)
}

// fill sets the status of the lease to that of a bound one.
func (m *mac) fill(lease *rack.MacNodeLease) {
	lease.Finalizers = append(lease.Finalizers, rules.FinalizerFloor)
	s := &lease.Status
	s.Phase, s.BoundAt, s.EarliestReleaseAt = rack.MacNodeLeaseBound, m.boundAt.DeepCopy(), m.floor.DeepCopy()
	s.NodeName, s.SerialNumber = m.node.Name, m.node.Spec.SerialNumber
	if held := m.witness.LeaseRef.HeldAt; held != nil {
		s.Phase, s.HeldAt = rack.MacNodeLeaseHeld, held
		lease.DeletionTimestamp, lease.DeletionGracePeriodSeconds = held, ptr.To[int64](0)
	}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: rack.MacNodeLeaseConditionMacReady, Status: metav1.ConditionFalse, Reason: m.node.Status.Quarantine.Reason,
		Message: m.node.Status.Quarantine.Message, LastTransitionTime: metav1.NewTime(m.now),
	})
	macnodelease.DeriveConditions(lease, m.now)
}

func (m *mac) recordBinding(ctx context.Context, tx *txn.Tx, lease *rack.MacNodeLease) error {
	ref := *m.witness.LeaseRef.DeepCopy()
	ref.BoundAt = lease.Status.BoundAt
	macnode.Assign(m.node, lease, ref)
	record, err := macnodelease.NewBindingRecord(ctx, tx, lease, m.node)
	if err != nil {
		return err
	}
	record.Details.Message = "restored from the witness of the Mac"
	return m.record(ctx, tx, record)
}

// raise raises the floor of the lease to the one that the Mac has seen.
func (m *mac) raise(ctx context.Context, tx *txn.Tx) error {
	from := m.lease.Status.EarliestReleaseAt
	m.lease.Spec.MinimumDuration = scalar.NewDuration(m.floor.Sub(m.lease.Status.BoundAt.Time))
	m.lease.Generation++
	m.lease.Status.EarliestReleaseAt = m.floor.DeepCopy()
	macnodelease.DeriveConditions(m.lease, m.now)
	if err := tx.Update(ctx, macnodelease.Resource, m.lease); err != nil {
		return err
	}
	m.node.Status.EarliestReleaseAt = m.floor.DeepCopy()
	return m.record(ctx, tx, ledger.NewFloorLengthened(m.lease, from))
}
