package tenancy

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Ownership assigns new leases and instances to their namespaces.
type Ownership struct {
	lookup     Lookup
	cachedLive Namespaces
}

// NewOwnership returns the ownership of the namespaces in lookup.
func NewOwnership(lookup Lookup) *Ownership {
	o := &Ownership{lookup: lookup}
	if lookup.Live != nil {
		o.cachedLive = Cached(clock.RealClock{}, lookup.Live)
	}
	return o
}

// AssignLease stores the UID of its namespace in a new lease. With the first lease of a namespace,
// it also stores the start of its ownership.
func (o *Ownership) AssignLease(ctx context.Context, tx *txn.Tx, lease *rack.MacNodeLease, now time.Time) error {
	uid, err := o.lookup.Namespaces(ctx, lease.Namespace)
	if err != nil {
		return err
	}
	value, exists, err := tx.GetKey(ctx, IndexOwner, lease.Namespace)
	if err != nil {
		return err
	}
	stored, _ := decode(value)
	if uid, err = confirm(ctx, o.lookup.Live, lease.Namespace, uid, stored); err != nil {
		return err
	}
	if uid == "" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, lease.Namespace)
	}
	lease.Status.NamespaceUID = uid
	if exists && stored == uid {
		return nil
	}
	return tx.PutKey(IndexOwner, lease.Namespace, encode(uid, now))
}

// AssignRestoredLease stores the UID that its namespace had in a restored lease. It is AssignLease
// if the namespace is still the same; otherwise, today's owner gets no access.
func (o *Ownership) AssignRestoredLease(ctx context.Context, tx *txn.Tx, lease *rack.MacNodeLease, owner types.UID, now time.Time) error {
	lease.Status.NamespaceUID = owner
	uid, err := o.lookup.Namespaces(ctx, lease.Namespace)
	if apierrors.IsNotFound(err) || err == nil && uid != owner && owner != "" {
		return nil
	}
	if err != nil {
		return err
	}
	err = o.AssignLease(ctx, tx, lease, now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// AssignInstance stores the UID of its namespace in a new instance. It refuses a lease of an
// earlier namespace with the same name.
func (o *Ownership) AssignInstance(ctx context.Context, i *instance.MacOSInstance, lease *rack.MacNodeLease) error {
	uid, err := o.lookup.Namespaces(ctx, i.Namespace)
	if err != nil {
		return err
	}
	if o.lookup.Live != nil && uid != lease.Status.NamespaceUID {
		// All users share the lookups of Live. A refusal may rely on an answer of up to a second
		// ago; an instance is admitted only by a current one.
		if uid, err = o.cachedLive(ctx, i.Namespace); err == nil && uid == lease.Status.NamespaceUID {
			uid, err = o.lookup.Live(ctx, i.Namespace)
		}
		if err != nil {
			return err
		}
	}
	if uid == "" || uid != lease.Status.NamespaceUID {
		cause := fmt.Errorf("%s: lease %q is from an earlier namespace %q, which belonged to another tenant, and ends by itself; create a lease of your own", rules.OneTenantPerChassis, lease.Name, i.Namespace)
		// The tenant reads the record, so it has neither the lease's UID nor its Mac.
		return rejection.Forbidden(instance.Resource("macosinstances"), i.Name, cause, ledger.NewInstanceRejected(i, nil, rack.LayerRegistry, "LeaseOfEarlierNamespace", cause.Error()))
	}
	i.Status.NamespaceUID = uid
	return nil
}
