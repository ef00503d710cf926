// Package txn commits the write of an object, and of the objects that depend on it, in one etcd
// transaction.
//
// # Why
//
// The rules of MacRack span objects: an instance needs a free slot of a lease, a lease needs a free
// Mac, and every change needs an audit record. A stock API server writes one object at a time. It
// would have to check first and write later, with a race in between, or write the objects in turn
// and clean up after a crash. This package compares all objects that a rule has read, and writes
// all objects that it changes, in one transaction. If any of them has changed in the meantime,
// nothing is written and the rule is evaluated again.
//
// # How
//
// The resources of the server are a [Backend]. It is their [generic.RESTOptionsGetter], so that the
// generic registry works unchanged: strategies, admission, watch caches, finalizers and
// subresources are the stock ones.
//
// A resource with rules has a [Planner]. Before one of its objects, the main object, is created,
// updated or deleted, the planner is called with the old object, the new object and a [Tx]. It
// reads other objects, the companions, with [Tx.Get], and adds writes of them with [Tx.Create],
// [Tx.Update] and [Tx.Delete]. It refuses the write by returning an API error:
//
//	func planInstance(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
//		lease := &rack.MacNodeLease{}
//		if err := tx.Get(ctx, leases, "", name, lease); err != nil {
//			return err
//		}
//		if !takeSlot(lease, new) {
//			return apierrors.NewForbidden(...)
//		}
//		return tx.Update(ctx, leases, lease)
//	}
//
// The etcd3 storage of k8s.io/apiserver writes through two methods of an interface, OptimisticPut
// and OptimisticDelete. In the stores of the backend, these methods are implemented by a client of
// this package. It takes the Tx from the context and commits
//
//	If   the main object and all companions are at the revisions that were read
//	Then write the main object and the companions
//	Else read them all again
//
// # What a planner can rely on
//
//   - If the write commits, everything that the planner read was current at that moment.
//   - If the planner's refusal reaches the user, the main object and everything that the planner
//     read were current at one etcd revision.
//   - The planner may be called any number of times before that. The first call reads from the
//     watch caches, which are cheap but may be stale; the comparison in the commit detects stale
//     reads. A refusal that depends on such a read is discarded, and the planner is called again
//     with reads from etcd.
//   - Writes of one process to the same object, as the main object or as a companion, wait for its
//     lock, so that competing writes do not conflict with each other. Each user has the same share
//     of the lock, regardless of the number of writes.
//   - A write with repeated conflicts fails with status 429, and nothing is changed. If etcd is
//     unreachable, it fails with status 503, and nothing is changed unless the message reports an
//     unknown outcome: a write is never sent twice. If etcd is full, it fails with status 507 and
//     an unknown outcome, because etcd commits the write that exceeds the quota and returns the
//     same error for it as for refused writes.
//
// # Index keys
//
// State that is not an object is stored under index keys, which no API exposes: for example the
// head of an audit chain, or the owner of a serial number. See [Tx.GetKey].
//
// # Files
//
// tx.go has the API for planners, and index.go its methods for index keys. store.go calls the
// planners, client.go commits, retry.go retries conflicts, keylock.go queues competing writes, and
// pacer.go limits the write rate per user and object. revisioncache.go has the state that is kept
// between transactions. backend.go and decorator.go connect the package to the generic registry.
// scan.go reads resources too large for a list, etcd.go and errors.go handle failures of etcd, and
// dryrun.go handles dry runs.
//
// # Limits
//
//   - A transaction can have one write per resource, including that of the main object. All its
//     writes have the same revision, and a watch that is interrupted between two events of one
//     revision resumes after the second (kubernetes#110210). Index keys are exempt.
//   - Strategies, admission and managedFields are not applied to companions.
//   - An update that does not change the main object cannot have companions, because the storage
//     would write nothing. It is an error.
//   - Planned objects cannot have a TTL, and objects that cannot be decoded cannot be deleted.
//   - All resources of a backend are in one etcd cluster, under one prefix.
package txn
