package macnode

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/identity"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Resource is the resource of MacNodes.
var Resource = rack.Resource("macnodes")

// IndexSerialNumber is the kind of index key that maps a serial number to the name of its MacNode.
const IndexSerialNumber = "serial-number"

// NewPlanner returns the planner of MacNodes: serial numbers are unique, a leased Mac cannot be deleted or change its class, and quarantines are recorded.
func NewPlanner(clock clock.PassiveClock) txn.Planner {
	p := &planner{clock}
	return func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
		was, _ := old.(*rack.MacNode)
		is, _ := new.(*rack.MacNode)
		var err error
		switch {
		case was == nil:
			err = p.create(ctx, tx, is)
		case is == nil:
			return p.delete(ctx, tx, was)
		default:
			err = p.update(ctx, tx, was, is)
		}
		if err == nil {
			deriveConditions(is, p.clock.Now())
		}
		return err
	}
}

type planner struct{ clock clock.PassiveClock }

func (p *planner) create(ctx context.Context, tx *txn.Tx, is *rack.MacNode) error {
	owner, taken, err := tx.GetKey(ctx, IndexSerialNumber, is.Spec.SerialNumber)
	if err != nil {
		return err
	}
	if taken {
		return apierrors.NewInvalid(rack.Kind("MacNode"), is.Name, field.ErrorList{field.Invalid(field.NewPath("spec", "serialNumber"), is.Spec.SerialNumber,
			fmt.Sprintf("a chassis is in the fleet once, and this one is MacNode %s", owner))})
	}
	if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", is.Spec.ClassName, &rack.MacNodeClass{}); apierrors.IsNotFound(err) {
		return apierrors.NewInvalid(rack.Kind("MacNode"), is.Name, field.ErrorList{field.NotFound(field.NewPath("spec", "className"), is.Spec.ClassName)})
	} else if err != nil {
		return err
	}
	DerivePhase(is)
	return tx.CreateKey(IndexSerialNumber, is.Spec.SerialNumber, []byte(is.Name))
}

func (p *planner) delete(ctx context.Context, tx *txn.Tx, was *rack.MacNode) error {
	if err := refuseLeased(was); err != nil {
		return err
	}
	if q := was.Status.Quarantine; q != nil {
		record := ledger.NewNodeRecovered(was, "Removed", fmt.Sprintf("the Mac was taken out of the fleet while it was in quarantine (%s)", q.Reason))
		if err := ledger.Append(ctx, tx, p.clock, record); err != nil {
			return err
		}
	}
	if _, exists, err := tx.GetKey(ctx, IndexSerialNumber, was.Spec.SerialNumber); err != nil || !exists {
		return err
	}
	return tx.DeleteKey(IndexSerialNumber, was.Spec.SerialNumber)
}

// refuseLeased refuses to delete a Mac that belongs to a lease.
func refuseLeased(was *rack.MacNode) error {
	ref := was.Status.LeaseRef
	if ref == nil {
		return nil
	}
	return apierrors.NewConflict(Resource, was.Name, fmt.Errorf("%s: the Mac belongs to lease %s/%s until its release", rules.OneTenantPerChassis, ref.Namespace, ref.Name))
}

func (p *planner) update(ctx context.Context, tx *txn.Tx, was, is *rack.MacNode) error {
	// With a finalizer, including those of Orphan and Foreground, a deletion starts as an update and would complete at the release.
	if was.DeletionTimestamp == nil && is.DeletionTimestamp != nil {
		if err := refuseLeased(was); err != nil {
			return err
		}
	}
	if was.Spec.ClassName != is.Spec.ClassName {
		if ref := was.Status.LeaseRef; ref != nil {
			return apierrors.NewConflict(Resource, was.Name, fmt.Errorf("%s: the class cannot be changed while the Mac belongs to lease %s/%s", rules.OneTenantPerChassis, ref.Namespace, ref.Name))
		}
		if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", is.Spec.ClassName, &rack.MacNodeClass{}); apierrors.IsNotFound(err) {
			return apierrors.NewInvalid(rack.Kind("MacNode"), is.Name, field.ErrorList{field.NotFound(field.NewPath("spec", "className"), is.Spec.ClassName)})
		} else if err != nil {
			return err
		}
	}
	if is.Status.Scrub != nil && was.Status.ReleasingSince == nil && !equality.Semantic.DeepEqual(was.Status.Scrub, is.Status.Scrub) {
		return apierrors.NewConflict(Resource, was.Name, errors.New("a Mac can be scrubbed only while status.releasingSince is set, after its lease has ended"))
	}
	if err := p.recount(ctx, tx, is); err != nil {
		return err
	}
	record := p.quarantine(ctx, was, is)
	DerivePhase(is)
	if record == nil {
		return nil
	}
	return ledger.Append(ctx, tx, p.clock, record)
}

// recount resets the number of virtual machines of a scrubbed Mac if no slot of its lease is taken: no virtual machine is running then, because its start and end need the slot in the same transaction. An older API server may have counted one twice, and the Mac could never be released.
func (p *planner) recount(ctx context.Context, tx *txn.Tx, is *rack.MacNode) error {
	ref, scrub := is.Status.LeaseRef, is.Status.Scrub
	if is.Status.RunningVMs == 0 || is.Status.ReleasingSince == nil || ref == nil || scrub == nil || scrub.LeaseUID != ref.UID || len(scrub.Remaining) > 0 ||
		!meta.IsStatusConditionTrue(is.Status.Conditions, rack.MacNodeScrubbed) {
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
		is.Status.RunningVMs = 0
	}
	return nil
}

// quarantine begins or ends a quarantine, and returns its record.
func (p *planner) quarantine(ctx context.Context, was, is *rack.MacNode) *rack.AuditRecord {
	cause := quarantineCause(is)
	asserted := !identity.IsAgent(ctx) && is.Status.Scrub != nil && !equality.Semantic.DeepEqual(was.Status.Scrub, is.Status.Scrub)
	switch {
	case asserted && was.Status.Quarantine == nil:
		// An offline Mac may still run its virtual machines, and may come back online.
		is.Status.Quarantine = &rack.Quarantine{
			Reason: rack.ReasonScrubAsserted, Since: metav1.NewTime(p.clock.Now()), BootID: was.Status.BootID,
			Message: fmt.Sprintf("%s reports that the Mac is scrubbed, but its agent does not; reboot the Mac, or inspect it and end the quarantine", identity.Username(ctx)),
		}
		return ledger.NewNodeQuarantined(is)
	case asserted:
		is.Status.Quarantine = was.Status.Quarantine
		return nil
	case was.Status.Quarantine == nil && cause != nil:
		is.Status.Quarantine = &rack.Quarantine{Reason: cause.Reason, Message: cause.Message, Since: metav1.NewTime(p.clock.Now()), BootID: is.Status.BootID}
		return ledger.NewNodeQuarantined(is)
	case was.Status.Quarantine == nil:
		is.Status.Quarantine = nil
		return nil
	case identity.IsAgent(ctx):
		is.Status.Quarantine = was.Status.Quarantine
		rebooted := is.Status.BootID != "" && is.Status.BootID != was.Status.Quarantine.BootID
		if cause != nil || !rebooted {
			return nil
		}
		is.Status.Quarantine = nil
		return ledger.NewNodeRecovered(is, "Rebooted", fmt.Sprintf("the Mac has rebooted since it was quarantined (%s): its agent reports a new boot ID", was.Status.Quarantine.Reason))
	case is.Status.Quarantine == nil:
		// Any user other than an agent who can write the status is an administrator. The agent's conditions remain until its next report, so they are reset here; otherwise the quarantine would begin again.
		for _, t := range []string{rack.MacNodeSlotsHealthy, rack.MacNodeScrubbed} {
			if c := meta.FindStatusCondition(is.Status.Conditions, t); c != nil && c.Status == metav1.ConditionFalse {
				meta.SetStatusCondition(&is.Status.Conditions, metav1.Condition{
					Type: t, Status: metav1.ConditionUnknown, Reason: "QuarantineCleared", Message: "an administrator ended the quarantine",
					LastTransitionTime: metav1.NewTime(p.clock.Now()),
				})
			}
		}
		return ledger.NewNodeRecovered(is, "Administrator", fmt.Sprintf("an administrator ended the quarantine (%s)", was.Status.Quarantine.Reason))
	default:
		// The administrator decides which unknown virtual machines are stopped. The rest of the quarantine is kept.
		end := is.Status.Quarantine.EndInstances
		is.Status.Quarantine = was.Status.Quarantine.DeepCopy()
		is.Status.Quarantine.EndInstances = end
		return nil
	}
}

// quarantineCause returns the condition that requires a quarantine of the Mac, or nil.
func quarantineCause(node *rack.MacNode) *metav1.Condition {
	if c := meta.FindStatusCondition(node.Status.Conditions, rack.MacNodeSlotsHealthy); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	if c := meta.FindStatusCondition(node.Status.Conditions, rack.MacNodeScrubbed); c != nil && c.Status == metav1.ConditionFalse && c.Reason == rack.ReasonScrubFailed {
		return c
	}
	return nil
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
	}))
}
