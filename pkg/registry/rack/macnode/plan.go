package macnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Resource is the resource of MacNodes.
var Resource = rack.Resource("macnodes")

// IndexSerialNumber is the kind of index key that maps a serial number to the name of its MacNode.
const IndexSerialNumber = "serial-number"

// NewPlanner returns the planner of MacNodes: serial numbers are unique, a leased Mac cannot be
// deleted or change its class, and quarantines are recorded.
func NewPlanner(clock clock.PassiveClock) txn.Planner {
	p := &planner{clock}
	return func(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
		old, _ := oldObj.(*rack.MacNode)
		new, _ := newObj.(*rack.MacNode)
		var err error
		switch {
		case old == nil:
			err = p.create(ctx, tx, new)
		case new == nil:
			return p.delete(ctx, tx, old)
		default:
			err = p.update(ctx, tx, old, new)
		}
		if err == nil {
			deriveConditions(new, p.clock.Now())
		}
		return err
	}
}

type planner struct{ clock clock.PassiveClock }

func (p *planner) create(ctx context.Context, tx *txn.Tx, new *rack.MacNode) error {
	owner, taken, err := tx.GetKey(ctx, IndexSerialNumber, new.Spec.SerialNumber)
	if err != nil {
		return err
	}
	if taken {
		return apierrors.NewInvalid(rack.Kind("MacNode"), new.Name, field.ErrorList{field.Invalid(field.NewPath("spec", "serialNumber"), new.Spec.SerialNumber,
			fmt.Sprintf("serial number already in use by MacNode %s", owner))})
	}
	if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", new.Spec.ClassName, &rack.MacNodeClass{}); apierrors.IsNotFound(err) {
		return apierrors.NewInvalid(rack.Kind("MacNode"), new.Name, field.ErrorList{field.NotFound(field.NewPath("spec", "className"), new.Spec.ClassName)})
	} else if err != nil {
		return err
	}
	head, err := chainHead(ctx, tx, new)
	if err != nil {
		return err
	}
	if err := showHead(ctx, tx, new, head); err != nil { // the MacNode was deleted and created again
		return err
	}
	DerivePhase(new)
	return tx.CreateKey(IndexSerialNumber, new.Spec.SerialNumber, []byte(new.Name))
}

func (p *planner) delete(ctx context.Context, tx *txn.Tx, old *rack.MacNode) error {
	if err := checkNotLeased(old); err != nil {
		return err
	}
	if q := old.Status.Quarantine; q != nil {
		message := fmt.Sprintf("the Mac was taken out of the fleet while it was in quarantine (%s)", q.Reason)
		record := ledger.NewNodeRecovered(old, "Removed", message)
		if loss := ledgerOf(old).Loss; loss != nil {
			record = endOfLoss(old, &loss.Witness, "Removed", message)
			if err := removeClaims(ctx, tx, old); err != nil {
				return err
			}
		}
		if err := ledger.Append(ctx, tx, p.clock, record); err != nil {
			return err
		}
	}
	if _, exists, err := tx.GetKey(ctx, IndexSerialNumber, old.Spec.SerialNumber); err != nil || !exists {
		return err
	}
	return tx.DeleteKey(IndexSerialNumber, old.Spec.SerialNumber)
}

// checkNotLeased refuses to delete a Mac that belongs to a lease.
func checkNotLeased(old *rack.MacNode) error {
	ref := old.Status.LeaseRef
	if ref == nil {
		return nil
	}
	return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("%s: the Mac belongs to lease %s/%s until its release", rules.OneTenantPerChassis, ref.Namespace, ref.Name))
}

func (p *planner) update(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode) error {
	// With a finalizer, including those of Orphan and Foreground, a deletion starts as an update
	// and would complete at the release.
	if old.DeletionTimestamp == nil && new.DeletionTimestamp != nil {
		if err := checkNotLeased(old); err != nil {
			return err
		}
	}
	if old.Spec.ClassName != new.Spec.ClassName {
		if ref := old.Status.LeaseRef; ref != nil {
			return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("%s: the class cannot be changed while the Mac belongs to lease %s/%s", rules.OneTenantPerChassis, ref.Namespace, ref.Name))
		}
		if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", new.Spec.ClassName, &rack.MacNodeClass{}); apierrors.IsNotFound(err) {
			return apierrors.NewInvalid(rack.Kind("MacNode"), new.Name, field.ErrorList{field.NotFound(field.NewPath("spec", "className"), new.Spec.ClassName)})
		} else if err != nil {
			return err
		}
	}
	if new.Status.Scrub != nil && old.Status.ReleasingSince == nil && !equality.Semantic.DeepEqual(old.Status.Scrub, new.Status.Scrub) {
		return apierrors.NewConflict(Resource, old.Name, errors.New("a Mac can be scrubbed only while status.releasingSince is set, after its lease has ended"))
	}
	if err := p.recount(ctx, tx, new); err != nil {
		return err
	}
	found, err := p.checkWitness(ctx, tx, old, new)
	if err != nil {
		return err
	}
	record, err := p.quarantine(ctx, tx, old, new, found)
	if err != nil {
		return err
	}
	if record != nil {
		if err := Append(ctx, tx, p.clock, new, record); err != nil {
			return err
		}
	}
	DerivePhase(new)
	return nil
}

// recount resets the number of virtual machines of a scrubbed Mac if no slot of its lease is taken:
// no virtual machine is running then, because its start and end need the slot in the same
// transaction. An older API server may have counted one twice, and the Mac could never be released.
func (p *planner) recount(ctx context.Context, tx *txn.Tx, new *rack.MacNode) error {
	ref, scrub := new.Status.LeaseRef, new.Status.Scrub
	if new.Status.RunningVMs == 0 || new.Status.ReleasingSince == nil || ref == nil || scrub == nil || scrub.LeaseUID != ref.UID || len(scrub.Remaining) > 0 ||
		!meta.IsStatusConditionTrue(new.Status.Conditions, rack.MacNodeScrubbed) {
		return nil
	}
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, rack.Resource("macnodeleases"), ref.Namespace, ref.Name, lease); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if lease.UID == ref.UID && len(lease.Status.Instances) == 0 {
		new.Status.RunningVMs = 0
	}
	return nil
}

// Derive derives the phase and the conditions of a MacNode from the rest of the object.
func Derive(node *rack.MacNode, now time.Time) {
	DerivePhase(node)
	deriveConditions(node, now)
}

// DerivePhase derives the phase of a MacNode from the rest of the object.
func DerivePhase(node *rack.MacNode) {
	s := &node.Status
	s.Phase = rack.MacNodePhase(rules.NodePhase(rules.NodeFacts{
		Seen:        s.Hardware != nil,
		Quarantined: s.Quarantine != nil,
		Offline:     meta.IsStatusConditionFalse(s.Conditions, rack.MacNodeReady),
		Leased:      s.LeaseRef != nil,
		Releasing:   s.ReleasingSince != nil,
		Maintenance: node.Spec.Maintenance,
		Unconfirmed: s.Ledger != nil && s.Ledger.Unconfirmed,
	}))
}
