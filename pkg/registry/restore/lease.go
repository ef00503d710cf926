package restore

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/ledger"
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
		return nil, m.conflict("%s was bound to Mac %q after the loss; delete it there first", m.leaseRef(), lease.Status.NodeName)
	}
	m.lease = lease
	floor, boundAt := m.floor()
	if ref := m.node.Status.LeaseRef; ref != nil && ref.UID == w.UID {
		if lease == nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("MacNode %q refers to %s, which does not exist", m.node.Name, m.leaseRef()))
		}
		if !lease.Status.EarliestReleaseAt.Before(&floor) {
			return nil, nil
		}
		return []step{{fmt.Sprintf("raise the floor of %s to %s", m.leaseRef(), floor.UTC().Format(time.RFC3339)), m.raise}}, nil
	}
	var steps []step
	if m.node.Status.LeaseRef != nil {
		end, err := m.planEnd(ctx, tx, boundAt)
		if err != nil {
			return nil, err
		}
		steps = append(steps, end)
	}
	text := fmt.Sprintf("create %s of Mac %s, bound at %s until %s at least", m.leaseRef(), m.node.Spec.SerialNumber,
		boundAt.UTC().Format(time.RFC3339), floor.UTC().Format(time.RFC3339))
	if lease != nil {
		return append(steps, step{"bind instead of " + text, m.bind}), nil
	}
	return append(steps, step{text, m.create}), nil
}

// planEnd returns the step that ends the lease that the server has for the Mac. The Mac had
// released it in the lost history, before it was bound again.
func (m *mac) planEnd(ctx context.Context, tx *txn.Tx, boundAt metav1.Time) (step, error) {
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
	if err := rules.CheckSupersedes(now, floor, boundAt.Time); err != nil {
		return step{}, m.conflict("lease %s/%s cannot end: %w", ref.Namespace, ref.Name, err)
	}
	if len(stale.Status.Instances) > 0 {
		return step{}, m.conflict("lease %s/%s has ended on the Mac, but its instance %q has not on the server; wait for the report of the agent, then try again",
			ref.Namespace, ref.Name, stale.Status.Instances[0].Name)
	}
	return step{
		fmt.Sprintf("release lease %s/%s (UID %s), whose floor passed at %s: the Mac has been bound again since", ref.Namespace, ref.Name, ref.UID, floor.UTC().Format(time.RFC3339)),
		func(ctx context.Context, tx *txn.Tx) error { return m.end(ctx, tx, stale) },
	}, nil
}

// end deletes a lease that the Mac no longer serves.
func (m *mac) end(ctx context.Context, tx *txn.Tx, stale *rack.MacNodeLease) error {
	if err := tx.Delete(macnodelease.Resource, stale); err != nil {
		return err
	}
	s := &m.node.Status
	s.LeaseRef, s.EarliestReleaseAt, s.PrefetchImages, s.ReleasingSince = nil, nil, nil, nil
	record := ledger.NewLeaseReleased(stale, m.now, nil)
	record.Details.Message = "released in lost history: the Mac has been bound again since"
	return m.record(ctx, tx, record)
}

// create creates the lease that the Mac serves.
func (m *mac) create(ctx context.Context, tx *txn.Tx) error {
	w := m.witness.LeaseRef
	floor, boundAt := m.floor()
	lease := &rack.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID, CreationTimestamp: boundAt, Generation: 1},
		Spec:       rack.MacNodeLeaseSpec{ClassName: m.node.Spec.ClassName, MinimumDuration: scalar.NewDuration(floor.Sub(boundAt.Time))},
	}
	// An owner that the namespace has today gets the lease only if it had it before.
	err := m.Ownership.AssignLease(ctx, tx, lease, m.now)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if w.NamespaceUID != "" {
		lease.Status.NamespaceUID = w.NamespaceUID
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
	floor, boundAt := m.floor()
	lease.Finalizers = append(lease.Finalizers, rules.FinalizerFloor)
	s := &lease.Status
	s.Phase, s.BoundAt, s.EarliestReleaseAt = rack.MacNodeLeaseBound, &boundAt, &floor
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
	s := &m.node.Status
	s.LeaseRef = m.witness.LeaseRef.DeepCopy()
	s.EarliestReleaseAt = lease.Status.EarliestReleaseAt
	s.PrefetchImages = lease.Spec.PrefetchImages
	s.ReleasingSince, s.Scrub = nil, nil
	meta.RemoveStatusCondition(&s.Conditions, rack.MacNodeScrubbed)
	record := ledger.NewLeaseBound(lease, m.node)
	record.Details.Message = "restored from the witness of the Mac"
	return m.record(ctx, tx, record)
}

// raise raises the floor of the lease to the one that the Mac has seen.
func (m *mac) raise(ctx context.Context, tx *txn.Tx) error {
	floor, _ := m.floor()
	from := m.lease.Status.EarliestReleaseAt
	m.lease.Spec.MinimumDuration = scalar.NewDuration(floor.Sub(m.lease.Status.BoundAt.Time))
	m.lease.Generation++
	m.lease.Status.EarliestReleaseAt = &floor
	macnodelease.DeriveConditions(m.lease, m.now)
	if err := tx.Update(ctx, macnodelease.Resource, m.lease); err != nil {
		return err
	}
	m.node.Status.EarliestReleaseAt = &floor
	return m.record(ctx, tx, ledger.NewFloorLengthened(m.lease, from))
}
