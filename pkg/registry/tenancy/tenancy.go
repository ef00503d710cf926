// Package tenancy tells namespaces of the same name apart. Records outlive their namespace, and whoever gets the name next
// is another tenant: what was there before is none of its business. So the first lease in the life of a namespace writes
// down that the life has begun, in the transaction that creates the lease, and the namespace's users read the records
// that are younger than that. Leases and instances can outlive their namespace when a user removes the namespace's finalizers: the lease then holds its
// Mac until the floor. Each notes the UID of its namespace, and does not exist for users of a later namespace of the same name.
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

// Kind is the kind of the index keys that hold the UID of each namespace, and since when it leases Macs.
const Kind = "namespace-life"

// foldedLate is how long after a rejection the count of identical ones may come: a minute, and time to write it.
const foldedLate = 2 * time.Minute

// Namespaces returns the UID of a namespace, which is empty if there is none of the name.
type Namespaces func(ctx context.Context, name string) (types.UID, error)

// Lives knows when the lives of namespaces have begun.
type Lives struct {
	// Namespaces returns the namespaces that there are now.
	Namespaces Namespaces
	// Live returns the same without a cache, which may lag behind; nil if Namespaces has none.
	Live Namespaces
	// Key reads an index key, and the revision of its last write, which is 0 if there is none.
	Key func(ctx context.Context, kind, id string) (value []byte, revision int64, err error)
	// SeesAll says whether the user of a request may read the records of all namespaces.
	SeesAll func(ctx context.Context) (bool, error)
	// Everywhere reports whether the user of a request may do in all namespaces what the request asks for.
	Everywhere func(ctx context.Context) (bool, error)

	once sync.Once
	// recentLive and recentKeys return what Live and Key have answered within the last second.
	recentLive, recentKeys Namespaces
}

// confirm returns the UID of a namespace of which a cache has one UID and the life key another, so that the cache may lag behind the replica that wrote the
// key. It asks live if the two differ.
func confirm(ctx context.Context, live Namespaces, name string, cached, key types.UID) (types.UID, error) {
	if live == nil || cached == key {
		return cached, nil
	}
	return live(ctx, name)
}

// confirmed returns uid, the UID of a namespace by the cache, or the UID by the API server if the life key of the namespace, as of a second ago, is another's.
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

// Leases returns planner, the planner of leases, which makes the first lease in the life of a namespace begin that life, and notes in each lease
// which namespace it belongs to.
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

// Instances returns planner, the planner of instances, which refuses to run an instance on a lease of another tenant whose namespace had the
// same name, and notes in each instance which namespace it belongs to.
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

// Own is a [rejection.Filter] of leases and instances. A user of a namespace has to do with the objects of that namespace, and not with those of an
// earlier namespace of the same name, whatever the verb. A user who may do in all namespaces what the request asks for has to do with all: among them
// are administrators, the controllers, and what deletes the contents of namespaces.
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

// Visible returns which records of the request's namespace its user may read; nil for all.
func (l *Lives) Visible(ctx context.Context) (func(*rack.AuditRecord) bool, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, nil // who may ask for all namespaces, may
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

// since says whether a record is of the life that began at a revision.
func since(record *rack.AuditRecord, revision int64, began time.Time) bool {
	written, err := storage.APIObjectVersioner{}.ObjectResourceVersion(record)
	if err != nil || int64(written) < revision {
		return false
	}
	// Of identical rejections the first is written at once, and the number of the others later.
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
