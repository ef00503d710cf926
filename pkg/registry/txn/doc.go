// Package txn commits the write of one object together with everything that
// the write depends on, in one etcd transaction.
//
// # Why
//
// The rules of this product span objects: an instance needs a free slot of a
// lease, a lease needs a free Mac, and every change needs an audit record. A
// stock API server writes one object at a time, so it would have to check
// first and write later, with a race in between, or write in turn and clean up
// after a crash. Here, what a rule looks at and what it changes are compared
// and written at once. If any of it changed in the meantime, nothing is
// written, and the rule is asked again.
//
// # How
//
// The resources of the server are a [Domain]. It is their
// [generic.RESTOptionsGetter], so that the generic registry works as ever:
// strategies, admission, watch caches, finalizers and subresources are the stock ones.
//
// A resource with rules has a [Planner]. When one of its objects, the main
// object, is to be created, updated or deleted, the planner is given the old
// and the new object and a [Tx]. It reads other objects, the companions, with
// [Tx.Get], adds writes of them with [Tx.Create], [Tx.Update] and [Tx.Delete],
// or refuses by returning an API error:
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
// The etcd3 storage of k8s.io/apiserver writes through two methods of an
// interface, OptimisticPut and OptimisticDelete. The domain's stores have it
// write through a client of this package, which finds the Tx in the context
// and commits
//
//	If   the main object and all companions are at the revisions that were read
//	Then write the main object and the companions
//	Else read them all again
//
// # What a planner can rely on
//
//   - If the write commits, all that the planner read was true at that moment.
//   - If the planner's refusal reaches the user, what the planner read and the
//     main object it was given were true at one etcd revision.
//   - The planner may be called any number of times before that. First with
//     reads from the watch caches, which are cheap but may be stale: staleness
//     is found by the commit's comparison. A refusal that rests on such a read
//     counts for nothing; the planner is called again with reads from etcd.
//   - Writes of one process that write the same object, as the main object or as
//     a companion, take turns, so that many rivals cost one conflict, not one
//     each. Users have the same share of the turns, however many writes each sends.
//   - A write that keeps meeting conflicts ends with status 429, and nothing
//     is changed. So it is with 503, when etcd cannot be reached, unless the
//     message says that the outcome is unknown: a write is never sent twice.
//     With 507, when etcd is full, it always is: etcd makes the write with
//     which it notices, and answers as it does to those that it refuses.
//
// # Index keys
//
// What is not an object lives under index keys, which no API can see: the head
// of an audit chain, who has a serial number. See [Tx.GetKey].
//
// # Where to read on
//
// tx.go is what planners use, index.go its part for index keys. store.go has
// writes planned, client.go commits them, retry.go tries again, turns.go lets
// rivals wait, pacer.go holds back users who write one object too fast. recent.go is what is remembered between transactions. domain.go
// and decorator.go put it all under the generic registry, scan.go reads what is too much for a list, etcd.go and errors.go
// deal with an etcd in trouble, and dryrun.go with writes that are none.
//
// # Limits
//
//   - One write per resource in a transaction, the main object's included. All
//     writes of a transaction share one revision, and a watch that breaks off
//     between two events of one revision is resumed behind the second
//     (kubernetes#110210). Index keys are exempt.
//   - Companions pass no strategy, admission or managedFields.
//   - An update that leaves the main object as it is cannot have companions:
//     nothing would be written. It is an error, not silence.
//   - Planned objects cannot have a TTL, and those that cannot be decoded
//     cannot be deleted.
//   - All resources of a domain are in one etcd cluster, under one prefix.
package txn
