package macnodelease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/tenancy"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Resource is the resource of MacNodeLeases.
var Resource = rack.Resource("macnodeleases")

// NewPlanner returns the planner of leases: a Mac has one lease, a lease keeps its Mac until the
// floor, only the subresources binding and release bind and release a Mac, and a new lease belongs
// to the current owner of its namespace.
func NewPlanner(clock clock.PassiveClock, fleet *fleetclock.Clock, ownership *tenancy.Ownership) txn.Planner {
	p := &planner{clock, fleet, ownership}
	return func(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
		old, _ := oldObj.(*rack.MacNodeLease)
		new, _ := newObj.(*rack.MacNodeLease)
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

type planner struct {
	clock     clock.PassiveClock
	fleet     *fleetclock.Clock
	ownership *tenancy.Ownership
}

// create refuses a lease that can never be bound, or that requests a Mac of another tenant.
func (p *planner) create(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease) error {
	invalid := func(err *field.Error) error {
		return apierrors.NewInvalid(rack.Kind("MacNodeLease"), new.Name, field.ErrorList{err})
	}
	if err := p.ownership.AssignLease(ctx, tx, new, p.clock.Now()); err != nil {
		return err
	}
	err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", new.Spec.ClassName, &rack.MacNodeClass{})
	if apierrors.IsNotFound(err) {
		return invalid(field.Invalid(field.NewPath("spec", "className"), new.Spec.ClassName, "there is no such class; see: kubectl get macnodeclasses"))
	}
	if err != nil || new.Spec.SerialNumber == "" {
		return err
	}
	return p.checkSerialNumber(ctx, tx, new)
}

// checkSerialNumber refuses a lease for a Mac that it cannot get. The error is the same for a
// missing Mac, a Mac of another class and a Mac of another tenant. A request for the Mac of another
// tenant is recorded.
func (p *planner) checkSerialNumber(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease) error {
	cause := fmt.Errorf("%s: no Mac of class %q with serial number %s is for lease: it does not exist, or it belongs to another lease; leave spec.serialNumber out to get any free Mac of the class",
		rules.OneTenantPerChassis, new.Spec.ClassName, new.Spec.SerialNumber)
	refused := apierrors.NewForbidden(Resource, new.Name, cause)
	name, exists, err := tx.GetKey(ctx, macnode.IndexSerialNumber, new.Spec.SerialNumber)
	if err != nil {
		return err
	}
	if !exists {
		return refused
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", string(name), node); apierrors.IsNotFound(err) {
		return refused
	} else if err != nil {
		return err
	}
	if ref := node.Status.LeaseRef; ref != nil {
		if ref.Namespace != new.Namespace {
			return rejection.Forbidden(Resource, new.Name, cause, ledger.NewCrossTenantRejected(new.Namespace, node, rack.LayerRegistry, "MacIsLeased", cause.Error()))
		}
		return p.refuseLeased(ctx, tx, new, node, cause)
	}
	if node.Spec.ClassName != new.Spec.ClassName {
		return refused
	}
	return nil
}

// refuseLeased refuses a lease of a Mac that is leased from a namespace of the same name: the
// tenant's own, or an earlier one.
func (p *planner) refuseLeased(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease, node *rack.MacNode, cause error) error {
	ref := node.Status.LeaseRef
	if ref.Name == new.Name {
		return apierrors.NewAlreadyExists(Resource, new.Name)
	}
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, Resource, ref.Namespace, ref.Name, lease); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if lease.UID != ref.UID || lease.Status.NamespaceUID != new.Status.NamespaceUID {
		return rejection.Forbidden(Resource, new.Name, cause, ledger.NewCrossTenantRejected(new.Namespace, node, rack.LayerRegistry, "MacIsLeased", cause.Error()))
	}
	return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: the Mac with serial number %s already belongs to lease %q of this namespace; use that", rules.OneTenantPerChassis, new.Spec.SerialNumber, ref.Name))
}

func (p *planner) update(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	if hasFloor(old) {
		// An instance cannot outlive its lease, so orphaning is not permitted. Foreground deletion
		// is not permitted either, because a Held lease keeps its instances, and accepts new ones,
		// until the floor.
		new.Finalizers = slices.DeleteFunc(new.Finalizers, func(f string) bool {
			return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
		})
	}
	if _, binding := bindingFrom(ctx); binding {
		return p.bind(ctx, tx, old, new)
	}
	if !bound(old) {
		if bound(new) || hasFloor(new) {
			return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: only the subresource binding gives a lease its Mac", rules.OneTenantPerChassis))
		}
		return nil
	}
	p.keepFloor(old, new)
	switch {
	case hasFloor(old) && !hasFloor(new):
		return p.release(ctx, tx, old, new)
	case old.DeletionTimestamp == nil && new.DeletionTimestamp != nil:
		return p.deleted(ctx, tx, old, new)
	case old.Status.Phase != new.Status.Phase:
		return p.changePhase(ctx, tx, old, new)
	case !old.Status.EarliestReleaseAt.Equal(new.Status.EarliestReleaseAt):
		return p.lengthen(ctx, tx, old, new)
	case !slices.Equal(old.Spec.PrefetchImages, new.Spec.PrefetchImages):
		return p.prefetch(ctx, tx, new)
	}
	return nil
}

// keepFloor derives the floor from the binding and the minimum duration, and never moves it
// backwards. The next write thereby restores a floor that was stored too short.
func (p *planner) keepFloor(old, new *rack.MacNodeLease) {
	new.Status.BoundAt = old.Status.BoundAt
	floor := metav1.NewTime(rules.LeaseFloor(old.Status.BoundAt, new.Spec.MinimumDuration.Value(), old.Status.EarliestReleaseAt))
	new.Status.EarliestReleaseAt = &floor
}

// floorOf returns the floor of a bound lease, even if the stored one is missing or too short.
func floorOf(lease *rack.MacNodeLease) time.Time {
	return rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
}

// delete plans the final deletion of a lease.
func (p *planner) delete(ctx context.Context, tx *txn.Tx, old *rack.MacNodeLease) error {
	if hasFloor(old) && old.DeletionTimestamp == nil {
		// The lease had no Mac when the deletion began.
		return boundMeanwhile{apierrors.NewConflict(Resource, old.Name, fmt.Errorf("it was bound to Mac %q at the same time; delete it again", old.Status.NodeName))}
	}
	if hasFloor(old) {
		return p.release(ctx, tx, old, nil)
	}
	if bound(old) && old.Status.ReleasedAt == nil {
		return tampered(old, "FloorFinalizerMissing", fmt.Errorf("%s: the lease has a Mac, which must be released first", rules.TwentyFourHours))
	}
	return nil
}

// boundMeanwhile is the error of the deletion of a lease that was bound after it had been read.
// This is not an attempt to tamper with its floor: the deletion is retried.
type boundMeanwhile struct{ *apierrors.StatusError }

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
		Class: node.Spec.ClassName, SerialNumber: node.Spec.SerialNumber,
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
	node.Status.LeaseRef = &rack.LeaseReference{Namespace: new.Namespace, Name: new.Name, UID: new.UID}
	node.Status.EarliestReleaseAt = &floor
	node.Status.PrefetchImages = new.Spec.PrefetchImages
	node.Status.ReleasingSince = nil
	node.Status.Scrub = nil
	meta.RemoveStatusCondition(&node.Status.Conditions, rack.MacNodeScrubbed)
	macnode.DerivePhase(node)
	if err := tx.Update(ctx, macnode.Resource, node); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, ledger.At(now), ledger.NewLeaseBound(new, node))
}

// deleted handles the deletion of a bound lease: it becomes Held, or Releasing if the floor has
// passed.
func (p *planner) deleted(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	agreed, err := p.agreed(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if rules.FloorPassed(agreed, new.Status.EarliestReleaseAt.Time) {
		new.Status.Phase = rack.MacNodeLeaseReleasing
		return p.beginRelease(ctx, tx, new, now)
	}
	new.Status.Phase = rack.MacNodeLeaseHeld
	new.Status.HeldAt = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	for n := range new.Status.Instances {
		new.Status.Instances[n].Stop = true
	}
	return ledger.Append(ctx, tx, ledger.At(now), ledger.NewLeaseHeld(new, now))
}

// changePhase permits the transition from Held to Releasing after the floor, and refuses all other
// writes of the phase.
func (p *planner) changePhase(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	if old.Status.Phase != rack.MacNodeLeaseHeld || new.Status.Phase != rack.MacNodeLeaseReleasing {
		return tampered(old, "PhaseTampered", fmt.Errorf("%s: the phase goes from Held to Releasing at the floor, not from %s to %s", rules.TwentyFourHours, old.Status.Phase, new.Status.Phase))
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	agreed, err := p.agreed(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if err := p.early(old, agreed, new.Status.EarliestReleaseAt.Time); err != nil {
		return err
	}
	return p.beginRelease(ctx, tx, new, now)
}

// agreed returns the earliest time of all replicas if the floor has passed by this replica's clock,
// and now otherwise.
func (p *planner) agreed(ctx context.Context, tx *txn.Tx, now, floor time.Time) (time.Time, error) {
	if !rules.FloorPassed(now, floor) {
		return now, nil
	}
	return p.fleet.Earliest(ctx, tx, now)
}

// early refuses to release a lease before its floor. The refusal is recorded, except right after
// the floor, when only the last readings of other replicas are from before it: this is not an
// attempt to tamper.
func (p *planner) early(old *rack.MacNodeLease, agreed, floor time.Time) error {
	err := rules.CheckRelease(agreed, floor)
	if err != nil && rules.FloorPassed(p.clock.Now(), floor) && rules.FloorPassed(agreed.Add(fleetclock.Tolerance), floor) {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("%s: the floor has only just passed, and not every API server knows; try again in a few seconds", rules.TwentyFourHours))
	}
	if err != nil {
		return tampered(old, "EarlyRelease", err)
	}
	return nil
}

// beginRelease starts the release of the Mac: its agent empties and scrubs it.
func (p *planner) beginRelease(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease, now time.Time) error {
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	since := metav1.NewTime(now.Truncate(time.Second))
	node.Status.ReleasingSince = &since
	macnode.DerivePhase(node)
	return tx.Update(ctx, macnode.Resource, node)
}

// lengthen moves a floor forward, also on the Mac, and records it.
func (p *planner) lengthen(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	if old.Status.Phase != rack.MacNodeLeaseBound && old.Status.Phase != rack.MacNodeLeaseHeld {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: the lease is %s, which cannot be lengthened; create a new lease", rules.TwentyFourHours, old.Status.Phase))
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	if old.Status.Phase == rack.MacNodeLeaseHeld && rules.FloorPassed(now, floorOf(old)) {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: the lease was deleted and its floor has passed, so it cannot be lengthened; create a new lease", rules.TwentyFourHours))
	}
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	node.Status.EarliestReleaseAt = new.Status.EarliestReleaseAt
	node.Status.PrefetchImages = new.Spec.PrefetchImages
	if err := tx.Update(ctx, macnode.Resource, node); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, ledger.At(now), ledger.NewFloorLengthened(new, old.Status.EarliestReleaseAt))
}

// prefetch passes a changed list of images to the Mac, unless the Mac is being released.
func (p *planner) prefetch(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease) error {
	if new.Status.Phase != rack.MacNodeLeaseBound && new.Status.Phase != rack.MacNodeLeaseHeld {
		return nil
	}
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	node.Status.PrefetchImages = new.Spec.PrefetchImages
	return tx.Update(ctx, macnode.Resource, node)
}

// release releases the Mac of the lease. new is nil if the lease is deleted with its last
// finalizer.
func (p *planner) release(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	release, releasing := releaseFrom(ctx)
	if !releasing {
		return tampered(old, "FloorFinalizerRemoved", fmt.Errorf("%s: the finalizer %s keeps the Mac with its lease and is removed only by its release; deleting the lease is enough, it ends by itself at %s",
			rules.TwentyFourHours, rules.FinalizerFloor, floorOf(old).UTC().Format(time.RFC3339)))
	}
	node, err := p.node(ctx, tx, old)
	if err != nil {
		return err
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	floor := floorOf(old)
	agreed, err := p.agreed(ctx, tx, now, floor)
	if err != nil {
		return err
	}
	if err := p.early(old, agreed, floor); err != nil {
		return err
	}
	if _, message := rules.BlocksRelease(releaseFacts(old, node, release.NodeTaints)); message != "" {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("it cannot be released yet: %s", message))
	}
	releasedAt := metav1.NewTime(now.Truncate(time.Second))
	if new != nil {
		new.Status.ReleasedAt = &releasedAt
		new.Status.Phase = rack.MacNodeLeaseReleased
	}
	node.Status.LeaseRef = nil
	node.Status.EarliestReleaseAt = nil
	node.Status.PrefetchImages = nil
	node.Status.ReleasingSince = nil
	macnode.DerivePhase(node)
	if err := tx.Update(ctx, macnode.Resource, node); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, ledger.At(now), ledger.NewLeaseReleased(old, releasedAt.Time, release.NodeTaints))
}

func releaseFacts(lease *rack.MacNodeLease, node *rack.MacNode, taints []string) rules.ReleaseFacts {
	facts := rules.ReleaseFacts{
		Releasing: lease.Status.Phase == rack.MacNodeLeaseReleasing && lease.DeletionTimestamp != nil, Phase: string(lease.Status.Phase),
		SerialNumber: node.Spec.SerialNumber,
		Scrub: rules.ScrubFacts{
			Releasing: node.Status.ReleasingSince != nil, RunningVMs: node.Status.RunningVMs, LeaseUID: lease.UID,
			Scrubbed: meta.IsStatusConditionTrue(node.Status.Conditions, rack.MacNodeScrubbed),
		},
		Node: node.Name, Taints: rules.ParseTaints(taints),
	}
	for _, slot := range lease.Status.Instances {
		facts.Instances = append(facts.Instances, slot.Name)
	}
	if scrub := node.Status.Scrub; scrub != nil {
		facts.Scrub.ReportedLease, facts.Scrub.Remaining = scrub.LeaseUID, scrub.Remaining
	}
	return facts
}

// node returns the Mac of the lease, which must have a reference to it.
func (p *planner) node(ctx context.Context, tx *txn.Tx, lease *rack.MacNodeLease) (*rack.MacNode, error) {
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", lease.Status.NodeName, node); err != nil {
		return nil, err
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		return nil, apierrors.NewInternalError(fmt.Errorf("lease %s/%s has Mac %q, which does not belong to it", lease.Namespace, lease.Name, node.Name))
	}
	return node, nil
}

// tampered returns the recorded refusal of an attempt to shorten a floor. cause names the rule.
func tampered(lease *rack.MacNodeLease, reason string, cause error) error {
	return rejection.Forbidden(Resource, lease.Name, cause, ledger.NewFloorTamperRejected(lease, reason, cause.Error()))
}

func bound(lease *rack.MacNodeLease) bool { return lease.Status.NodeName != "" }

func hasFloor(lease *rack.MacNodeLease) bool {
	return slices.Contains(lease.Finalizers, rules.FinalizerFloor)
}
