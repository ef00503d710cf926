package macnodelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// bind binds the lease to the MacNode in the request.
func (p *planner) bind(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	binding, _ := bindingFrom(ctx)
	if bound(old) {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("it is bound to Mac %q already", old.Status.NodeName))
	}
	if old.DeletionTimestamp != nil {
		return apierrors.NewConflict(Resource, old.Name, errors.New("it is being deleted"))
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", binding.NodeName, node); err != nil {
		return err
	}
	if err := rules.CheckBind(rules.BindFacts{
		Mac: node.Name, Phase: string(node.Status.Phase), Leased: node.Status.LeaseRef != nil, Deleting: node.DeletionTimestamp != nil,
		Unconfirmed: macnode.Unconfirmed(node),
		Class:       node.Spec.ClassName, SerialNumber: node.Spec.SerialNumber,
		WantedClass: old.Spec.ClassName, WantedSerialNumber: old.Spec.SerialNumber,
	}); err != nil {
		return apierrors.NewConflict(Resource, old.Name, err)
	}
	now, err := ledger.Now(ctx, tx, p.clock, node.Spec.SerialNumber)
	if err != nil {
		return err
	}
	if now, err = p.fleet.Latest(ctx, tx, now); err != nil {
		return err
	}
	boundAt := metav1.NewTime(rules.BoundAt(now))
	floor := metav1.NewTime(rules.EarliestRelease(boundAt.Time, new.Spec.MinimumDuration.Value()))
	new.Finalizers = append(new.Finalizers, rules.FinalizerFloor)
	new.Status.Phase = rack.MacNodeLeaseBound
	new.Status.BoundAt = &boundAt
	new.Status.EarliestReleaseAt = &floor
	new.Status.NodeName = node.Name
	new.Status.SerialNumber = node.Spec.SerialNumber
	meta.SetStatusCondition(&new.Status.Conditions, metav1.Condition{ // the Mac is Available; the controllers report changes
		Type: rack.MacNodeLeaseConditionMacReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(now),
		Message: rules.HealthyMac(node.Spec.SerialNumber),
	})
	macnode.Assign(node, new, rack.LeaseReference{Namespace: new.Namespace, Name: new.Name, UID: new.UID, BoundAt: &boundAt, NamespaceUID: new.Status.NamespaceUID})
	macnode.DerivePhase(node)
	bound, err := NewBindingRecord(ctx, tx, new, node)
	if err != nil {
		return err
	}
	return record(ctx, tx, now, node, bound)
}

// NewBindingRecord returns the record of the binding of a lease to a Mac, with the SKU that the
// class of the Mac has now.
func NewBindingRecord(ctx context.Context, tx *txn.Tx, lease *rack.MacNodeLease, node *rack.MacNode) (*rack.AuditRecord, error) {
	record := ledger.NewLeaseBound(lease, node)
	var err error
	record.Details.SKU, err = skuOf(ctx, tx, node.Spec.ClassName)
	return record, err
}

// record appends a record of a Mac, and writes the Mac.
func record(ctx context.Context, tx *txn.Tx, now time.Time, node *rack.MacNode, record *rack.AuditRecord) error {
	if err := macnode.Append(ctx, tx, ledger.At(now), node, record); err != nil {
		return err
	}
	return tx.Update(ctx, macnode.Resource, node)
}

// skuOf returns the billing SKU of a class, or an empty string if the class no longer exists.
func skuOf(ctx context.Context, tx *txn.Tx, className string) (string, error) {
	class := &rack.MacNodeClass{}
	err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", className, class)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return class.Spec.SKU, err
}
