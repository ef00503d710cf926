package macnodelease

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

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
			DeriveConditions(new, p.clock.Now())
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
	class := &rack.MacNodeClass{}
	err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", new.Spec.ClassName, class)
	if apierrors.IsNotFound(err) {
		return invalid(field.Invalid(field.NewPath("spec", "className"), new.Spec.ClassName, "there is no such class; see: kubectl get macnodeclasses"))
	}
	if err != nil {
		return err
	}
	if len(new.Spec.Caches) > 0 {
		storage := func(r rack.MachineResources) rules.Resources { return rules.Resources{Storage: r.Storage.Value()} }
		total := CacheStorage(new)
		if err := rules.CheckCaches(class.Name, storage(class.Spec.Capacity), storage(class.Spec.HostReserved), total); err != nil {
			return invalid(field.Invalid(field.NewPath("spec", "caches"), total.String(), err.Error()))
		}
	}
	if new.Spec.SerialNumber == "" {
		return nil
	}
	return p.checkSerialNumber(ctx, tx, new)
}

// CacheStorage returns the storage of all caches of a lease.
func CacheStorage(lease *rack.MacNodeLease) resource.Quantity {
	var total resource.Quantity
	for _, cache := range lease.Spec.Caches {
		total.Add(cache.SizeLimit.Value())
	}
	return total
}

// checkSerialNumber refuses a lease for a Mac that it cannot get. The error is the same for a
// missing Mac, a Mac of another class and a Mac of another tenant. A request for the Mac of another
// tenant is recorded.
func (p *planner) checkSerialNumber(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease) error {
	cause := fmt.Errorf("%s: the Mac of class %q with serial number %s does not exist or is not free; omit spec.serialNumber to get any free Mac of the class",
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
		return p.refuseTaken(ctx, tx, new, node, cause)
	}
	if node.Spec.ClassName != new.Spec.ClassName {
		return refused
	}
	return nil
}

// refuseTaken refuses a lease of a Mac that is leased from a namespace of the same name: the
// tenant's own, or an earlier one.
func (p *planner) refuseTaken(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease, node *rack.MacNode, cause error) error {
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
		// is not permitted either: it would delete the instances of a Held lease, which are only
		// stopped, and new ones are accepted until the floor.
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
		return p.hold(ctx, tx, old, new)
	case old.Status.Phase != new.Status.Phase:
		return p.changePhase(ctx, tx, old, new)
	case !old.Status.EarliestReleaseAt.Equal(new.Status.EarliestReleaseAt):
		return p.lengthen(ctx, tx, old, new)
	case !slices.Equal(old.Spec.PrefetchImages, new.Spec.PrefetchImages):
		return p.prefetch(ctx, tx, new)
	}
	return nil
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

func bound(lease *rack.MacNodeLease) bool { return lease.Status.NodeName != "" }
