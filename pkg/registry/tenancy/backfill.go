package tenancy

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/txn"
)

// backfillInterval is the time between two backfills. A server of an earlier version, which may
// still run during an upgrade, stores objects without a namespaceUID, and drops that of objects
// that it updates.
const backfillInterval = time.Minute

var (
	leases    = rack.Resource("macnodeleases")
	instances = instance.Resource("macosinstances")
)

// Backfill sets the namespaceUID of leases and instances that were stored before the field existed,
// which hides them from all tenants.
//
// The index key of a namespace has the UID of its owner and was written with the owner's first
// lease. An object that is not older than the key, by the revisions of etcd, belongs to that owner:
// it gets the UID of the key, even if the namespace has been replaced since. The UID of an earlier
// owner is unknown; its objects stay hidden, because they belong to no current tenant.
type Backfill struct {
	Backend *txn.Backend
}

// Run fills in what is missing once a minute, until ctx is done.
func (b Backfill) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, b.Once, backfillInterval)
}

// Once fills in what is missing now, and logs what it could not.
func (b Backfill) Once(ctx context.Context) {
	for _, kind := range []struct {
		resource schema.GroupResource
		empty    func() runtime.Object
	}{
		{leases, func() runtime.Object { return &rack.MacNodeLease{} }},
		{instances, func() runtime.Object { return &instance.MacOSInstance{} }},
	} {
		filled, unknown, err := b.resource(ctx, kind.resource, kind.empty)
		logger := klog.FromContext(ctx).WithValues("resource", kind.resource.String(), "filled", filled, "unknown", unknown)
		switch {
		case err != nil && ctx.Err() == nil:
			logger.Error(err, "Failed to backfill namespace UIDs")
		case filled > 0:
			logger.Info("Namespace UIDs backfilled")
		case unknown > 0:
			logger.V(4).Info("Objects of earlier namespaces stay hidden from tenants")
		}
	}
}

// resource fills in the objects of a resource. It returns how many, and how many are of an unknown
// namespace. An object that fails does not keep the others from being filled in.
func (b Backfill) resource(ctx context.Context, gr schema.GroupResource, empty func() runtime.Object) (filled, unknown int, err error) {
	scan, err := b.Backend.Scan(ctx, gr)
	if err != nil {
		return 0, 0, err
	}
	namespaces, err := scan.Namespaces(ctx)
	if err != nil {
		return 0, 0, err
	}
	var errs []error
	for _, namespace := range namespaces {
		for value, err := range scan.Values(ctx, namespace, "", "") {
			if err != nil {
				errs = append(errs, err)
				break
			}
			obj := empty()
			if err := scan.Decode(value, obj); err != nil {
				errs = append(errs, err)
				continue
			}
			if name, uid := owned(obj); *uid == "" {
				switch done, err := b.object(ctx, gr, namespace, name, value.Created, empty); {
				case err != nil:
					errs = append(errs, fmt.Errorf("%s/%s: %w", namespace, name, err))
				case done:
					filled++
				default:
					unknown++
				}
			}
		}
	}
	return filled, unknown, errors.Join(errs...)
}

// object fills in an object, which was created at a revision of etcd.
func (b Backfill) object(ctx context.Context, gr schema.GroupResource, namespace, name string, created int64, empty func() runtime.Object) (done bool, err error) {
	// A later owner gives the key a later revision, so the object is then older than the key.
	key, began, err := b.Backend.Key(ctx, IndexOwner, namespace)
	if err != nil {
		return false, err
	}
	owner, _ := decode(key)
	if owner == "" || created < began {
		return false, nil
	}
	err = b.Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
		obj := empty()
		if err := tx.Get(ctx, gr, namespace, name, obj); err != nil {
			return err
		}
		now, exists, err := tx.GetKey(ctx, IndexOwner, namespace)
		if err != nil {
			return err
		}
		_, uid := owned(obj)
		if *uid != "" || !exists || string(now) != string(key) {
			return nil
		}
		*uid = owner
		return tx.Update(ctx, gr, obj)
	})
	return err == nil, ignoreNotFound(err)
}

// owned returns the name of a lease or an instance, and where it has the UID of its namespace.
func owned(obj runtime.Object) (name string, uid *types.UID) {
	if lease, ok := obj.(*rack.MacNodeLease); ok {
		return lease.Name, &lease.Status.NamespaceUID
	}
	i := obj.(*instance.MacOSInstance)
	return i.Name, &i.Status.NamespaceUID
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
