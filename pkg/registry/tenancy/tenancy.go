// Package tenancy separates successive namespaces with the same name. Records outlive their
// namespace, and the next owner of the name is another tenant without access to them. The first
// lease in a namespace therefore stores the start of its ownership, in the transaction that creates
// the lease, and users of the namespace read only the records after it. Leases and instances can
// outlive their namespace when a user removes the finalizers of the namespace: the lease then keeps
// its Mac until the floor. They store the UID of their namespace, and are not visible to users of a
// later namespace with the same name.
//
// The planners of leases and instances write ownership through [Ownership]. The storages of leases,
// instances and records hide objects of earlier owners through [Filter].
package tenancy

import (
	"context"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// IndexOwner is the kind of the index keys with the owners of namespaces. The value of a key is the
// UID of the namespace and the time of its first lease. The stored name is historical: existing
// keys have it.
const IndexOwner = "namespace-life"

// Namespaces returns the UID of a namespace, or an empty UID if it does not exist.
type Namespaces func(ctx context.Context, name string) (types.UID, error)

// Lookup looks up the current namespaces.
type Lookup struct {
	// Namespaces may be cached.
	Namespaces Namespaces
	// Live is Namespaces without the cache, which may be stale; nil if Namespaces has no cache.
	Live Namespaces
}

// confirm returns the UID of a namespace. If the UID in a cache differs from the stored UID, the
// cache may be behind the replica that stored it, so confirm asks live.
func confirm(ctx context.Context, live Namespaces, name string, cached, stored types.UID) (types.UID, error) {
	if live == nil || cached == stored {
		return cached, nil
	}
	return live(ctx, name)
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
