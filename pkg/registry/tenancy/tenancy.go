// Package tenancy separates successive namespaces with the same name. Records outlive their
// namespace, and the next owner of the name is another tenant without access to them. The first
// lease in a namespace therefore stores the start of the namespace's life, in the transaction that
// creates the lease, and users of the namespace read only the records after it. Leases and
// instances can outlive their namespace when a user removes the finalizers of the namespace: the
// lease then keeps its Mac until the floor. They store the UID of their namespace, and are not
// visible to users of a later namespace with the same name.
package tenancy

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

var (
	leases     = rack.Resource("macnodeleases")
	namespaces = schema.GroupResource{Resource: "namespaces"}
)

// Kind is the kind of the index keys with the UID of each namespace and the time of its first
// lease.
const Kind = "namespace-life"

// foldedLate is the maximum delay of the count of identical rejections after the first: a minute,
// and the time for the write.
const foldedLate = 2 * time.Minute

// Namespaces returns the UID of a namespace, or an empty UID if it does not exist.
type Namespaces func(ctx context.Context, name string) (types.UID, error)

// Lives tracks the starts of the lives of namespaces.
type Lives struct {
	// Namespaces looks up the current namespaces.
	Namespaces Namespaces
	// Live is Namespaces without a cache, which may be stale; nil if Namespaces has no cache.
	Live Namespaces
	// Key reads an index key and the revision of its last write, which is 0 if the key does not
	// exist.
	Key func(ctx context.Context, kind, id string) (value []byte, revision int64, err error)
	// SeesAll reports whether the user of a request may read the records of all namespaces.
	SeesAll func(ctx context.Context) (bool, error)
	// Everywhere reports whether the user of a request has the requested permission in all
	// namespaces.
	Everywhere func(ctx context.Context) (bool, error)

	once sync.Once
	// recentLive and recentKeys cache the results of Live and Key for a second.
	recentLive, recentKeys Namespaces
}

// confirm returns the UID of a namespace. If the UID in a cache differs from that in the life key,
// the cache may be behind the replica that wrote the key, so confirm asks live.
func confirm(ctx context.Context, live Namespaces, name string, cached, key types.UID) (types.UID, error) {
	if live == nil || cached == key {
		return cached, nil
	}
	return live(ctx, name)
}

// confirmed returns uid, the cached UID of a namespace, or the UID from the API server if uid
// differs from that in the life key of up to a second ago.
func (l *Lives) confirmed(ctx context.Context, name string, uid types.UID) (types.UID, error) {
	if l.Live == nil {
		return uid, nil
	}
	l.once.Do(func() {
		l.recentLive = Remember(clock.RealClock{}, l.Live)
		l.recentKeys = Remember(clock.RealClock{}, func(ctx context.Context, name string) (types.UID, error) {
			value, _, err := l.Key(ctx, Kind, name)
			key, _ := decode(value)
			return key, err
		})
	})
	key, err := l.recentKeys(ctx, name)
	if err != nil || key == "" {
		return uid, err
	}
	return confirm(ctx, l.recentLive, name, uid, key)
}

// Leases wraps the planner of leases. It starts the life of a namespace with its first lease, and
// stores the UID of its namespace in each lease.
func (l *Lives) Leases(clock clock.PassiveClock, planner txn.Planner) txn.Planner {
	return func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
		if old != nil {
			return planner(ctx, tx, old, new)
		}
		lease, ok := new.(*rack.MacNodeLease)
		if !ok {
			return fmt.Errorf("a %T is not a lease", new)
		}
		uid, err := l.Namespaces(ctx, lease.Namespace)
		if err != nil {
			return err
		}
		value, exists, err := tx.GetKey(ctx, Kind, lease.Namespace)
		if err != nil {
			return err
		}
		was, _ := decode(value)
		if uid, err = confirm(ctx, l.Live, lease.Namespace, uid, was); err != nil {
			return err
		}
		if uid == "" {
			return apierrors.NewNotFound(namespaces, lease.Namespace)
		}
		lease.Status.NamespaceUID = uid
		if err := planner(ctx, tx, old, new); err != nil {
			return err
		}
		if exists && was == uid {
			return nil
		}
		return tx.PutKey(Kind, lease.Namespace, encode(uid, clock.Now()))
	}
}

// Instances wraps the planner of instances. It refuses an instance on a lease of an earlier
// namespace with the same name, and stores the UID of its namespace in each instance.
func (l *Lives) Instances(planner txn.Planner) txn.Planner {
	return func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
		if err := planner(ctx, tx, old, new); err != nil || old != nil {
			return err
		}
		is, ok := new.(*instance.MacOSInstance)
		if !ok {
			return fmt.Errorf("a %T is not an instance", new)
		}
		lease := &rack.MacNodeLease{}
		if err := tx.Get(ctx, leases, is.Namespace, is.Spec.LeaseName, lease); apierrors.IsNotFound(err) {
			return nil // a dry run, or refused by the planner
		} else if err != nil {
			return err
		}
		uid, err := l.Namespaces(ctx, is.Namespace)
		if err != nil {
			return err
		}
		if uid, err = confirm(ctx, l.Live, is.Namespace, uid, lease.Status.NamespaceUID); err != nil {
			return err
		}
		if uid == "" || uid != lease.Status.NamespaceUID {
			cause := fmt.Errorf("%s: lease %q is from an earlier namespace %q, which belonged to another tenant, and ends by itself; create a lease of your own", rules.OneTenantPerChassis, lease.Name, is.Namespace)
			return rejection.Forbidden(instance.Resource("macosinstances"), is.Name, cause, ledger.NewInstanceRejected(is, lease, rack.LayerRegistry, "LeaseOfEarlierNamespace", cause.Error()))
		}
		is.Status.NamespaceUID = uid
		return nil
	}
}

// Own is a [rejection.Filter] of leases and instances. For all verbs, it limits a user of a
// namespace to the objects of that namespace and hides those of an earlier namespace with the same
// name. A user with the requested permission in all namespaces sees all objects: for example
// administrators, the controllers, and the namespace controller.
func (l *Lives) Own(ctx context.Context) (fields.Selector, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, nil // authorized for all namespaces
	}
	if everywhere, err := l.Everywhere(ctx); err != nil || everywhere {
		return nil, err
	}
	uid, err := l.Namespaces(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if uid, err = l.confirmed(ctx, namespace, uid); err != nil {
		return nil, err
	}
	if uid == "" {
		return fields.Nothing(), nil
	}
	return fields.OneTermEqualSelector("status.namespaceUID", string(uid)), nil
}

// Visible returns the predicate for the records of the request's namespace that its user may read;
// nil for all.
func (l *Lives) Visible(ctx context.Context) (func(*rack.AuditRecord) bool, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, nil // authorized for all namespaces
	}
	if all, err := l.SeesAll(ctx); err != nil || all {
		return nil, err
	}
	uid, err := l.Namespaces(ctx, namespace)
	if err != nil {
		return nil, err
	}
	value, revision, err := l.Key(ctx, Kind, namespace)
	if err != nil {
		return nil, err
	}
	of, began := decode(value)
	if uid == "" || of != uid {
		revision = math.MaxInt64 // this life has no records yet
	}
	return func(record *rack.AuditRecord) bool { return since(record, revision, began) }, nil
}

// since reports whether a record belongs to the life that began at a revision.
func since(record *rack.AuditRecord, revision int64, began time.Time) bool {
	written, err := storage.APIObjectVersioner{}.ObjectResourceVersion(record)
	if err != nil || int64(written) < revision {
		return false
	}
	// The first of identical rejections is written at once, and the number of the others later.
	return record.Details.Count == 0 || record.Time.After(began.Add(foldedLate))
}

func encode(uid types.UID, began time.Time) []byte {
	return []byte(string(uid) + " " + strconv.FormatInt(began.UnixMicro(), 10))
}

func decode(value []byte) (uid types.UID, began time.Time) {
	id, micros, _ := strings.Cut(string(value), " ")
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return "", time.Time{}
	}
	return types.UID(id), time.UnixMicro(n)
}
