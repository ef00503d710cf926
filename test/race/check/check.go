// Package check replays the history of etcd, and reports violations of the three rules, the ledger
// and the index keys. It knows the types of the API and their storage, and shares no code with the
// server.
package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/apimachinery/pkg/types"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// A Checker replays the history of an etcd. It is not safe for concurrent use.
type Checker struct {
	rev int64

	nodes     map[string]*rackv1alpha1.MacNode
	leases    map[string]*rackv1alpha1.MacNodeLease      // by namespace/name
	instances map[string]*instancev1alpha1.MacOSInstance // by namespace/name
	images    map[string]*imagev1alpha1.MacOSImage
	index     map[string]string                      // index keys, by kind/id
	want      map[string]string                      // expected index keys
	chains    map[string]*chain                      // their last records
	places    map[string]*chain                      // unexpired records, by name
	newest    time.Time                              // of the records
	live      map[string]map[string]types.UID        // instances that have not ended, by lease and name
	running   map[string]map[types.UID]bool          // instances that run, by node
	mods      map[string]int64                       // the last revision of every existing key
	proved    map[change]int64                       // recorded changes, and the revisions of their records
	written   map[write]uint64                       // sums of all objects ever written
	created   map[string]bool                        // keys of all objects ever created
	gone      map[types.UID]bool                     // deleted objects
	bound     map[string]string                      // nodes that leases were ever bound to, by key
	released  map[string]bool                        // leases that were ever released, by key
	stopped   map[string]bool                        // instances ever asked to stop or ended, by key
	counts    map[rackv1alpha1.AuditRecordType]int64 // records
	total     int64                                  // violations

	checkpoints map[string]int64 // the last records that may have expired, by chain

	violations []Violation
	kept       map[string]int // violations of each rule
	current    *revision
	revisions  int64
}

type write struct {
	key string
	rev int64
}

// A change must be recorded: its kind, and the UID of the lease or instance, or the name of the
// MacNode.
type change struct {
	kind    rackv1alpha1.AuditRecordType
	subject string
}

type chain struct {
	sequence int64
	hash     string
	time     time.Time
}

// revision has the effects of one transaction.
type revision struct {
	changes  map[change]int // that must be recorded
	records  []*rackv1alpha1.AuditRecord
	objects  map[string]int // written, by resource
	leases   map[string]bool
	nodes    map[string]bool
	index    map[string]bool
	oldLease map[string]*rackv1alpha1.MacNodeLease
	oldNode  map[string]*rackv1alpha1.MacNode
}

// New returns a checker of an empty etcd.
func New() *Checker {
	return &Checker{
		nodes: map[string]*rackv1alpha1.MacNode{}, leases: map[string]*rackv1alpha1.MacNodeLease{}, instances: map[string]*instancev1alpha1.MacOSInstance{},
		images: map[string]*imagev1alpha1.MacOSImage{}, index: map[string]string{}, want: map[string]string{}, chains: map[string]*chain{}, places: map[string]*chain{}, checkpoints: map[string]int64{},
		live: map[string]map[string]types.UID{}, running: map[string]map[types.UID]bool{}, mods: map[string]int64{}, proved: map[change]int64{},
		written: map[write]uint64{}, created: map[string]bool{}, gone: map[types.UID]bool{}, bound: map[string]string{},
		released: map[string]bool{}, stopped: map[string]bool{}, counts: map[rackv1alpha1.AuditRecordType]int64{}, kept: map[string]int{},
	}
}

// Replay checks the history of an etcd from its first revision on. until receives a revision, of a
// write below /registry/; Replay ends at this revision or the first later one. It may run while the
// etcd is written to. The history must not have been compacted.
func (c *Checker) Replay(ctx context.Context, etcd *clientv3.Client, until <-chan int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(1))
	end := int64(-1)
	for end < 0 || c.rev < end {
		select {
		case end = <-until:
			until = nil
		case resp, ok := <-events:
			if !ok {
				return errors.New("the watch of etcd has ended")
			}
			if err := resp.Err(); err != nil {
				if resp.CompactRevision != 0 {
					return fmt.Errorf("history is missing: %w", err)
				}
				// A member was lost. Revisions arrive whole, so the watch resumes with the next
				// one.
				events = etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(c.rev+1))
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				continue
			}
			c.applyAll(resp.Events)
		}
	}
	return nil
}

// applyAll checks events of whole revisions.
func (c *Checker) applyAll(events []*clientv3.Event) {
	for len(events) > 0 {
		rev := events[0].Kv.ModRevision
		n := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision != rev })
		if n < 0 {
			n = len(events)
		}
		c.Apply(rev, events[:n])
		events = events[n:]
	}
}

// Finish compares the replayed state with the content of etcd.
func (c *Checker) Finish(ctx context.Context, etcd *clientv3.Client) error {
	have := map[string]int64{}
	key, options := prefix, []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithKeysOnly(), clientv3.WithLimit(10000), clientv3.WithRev(c.rev)}
	for {
		resp, err := etcd.Get(ctx, key, options...)
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			have[string(kv.Key)] = kv.ModRevision
		}
		if !resp.More {
			break
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	for key, rev := range have {
		if c.mods[key] != rev {
			c.violate(key, "Replay", "etcd has revision %d, the history has revision %d", rev, c.mods[key])
		}
	}
	for key, rev := range c.mods {
		if have[key] == 0 {
			c.violate(key, "Replay", "etcd does not have it, the history has it at revision %d", rev)
		}
	}
	for key := range c.want {
		if _, ok := c.index[key]; !ok {
			c.violate(key, "Index", "the index key is missing")
		}
	}
	for key := range c.index {
		if _, ok := c.want[key]; !ok {
			c.violate(key, "Index", "the index key belongs to no object")
		}
	}
	return nil
}

// Revisions returns the number of checked revisions.
func (c *Checker) Revisions() int64 { return c.revisions }

// Records returns the number of records of each type.
func (c *Checker) Records() map[rackv1alpha1.AuditRecordType]int64 { return maps.Clone(c.counts) }

// Apply checks the effects of one transaction.
func (c *Checker) Apply(rev int64, events []*clientv3.Event) {
	if rev <= c.rev {
		c.violate(string(events[0].Kv.Key), "Replay", "revision %d comes after %d", rev, c.rev)
		return
	}
	c.rev = rev
	c.revisions++
	c.current = &revision{
		changes: map[change]int{}, objects: map[string]int{}, leases: map[string]bool{}, nodes: map[string]bool{}, index: map[string]bool{},
		oldLease: map[string]*rackv1alpha1.MacNodeLease{}, oldNode: map[string]*rackv1alpha1.MacNode{},
	}
	for _, event := range events {
		key := string(event.Kv.Key)
		deleted := event.Type == mvccpb.Event_DELETE
		if deleted {
			delete(c.mods, key)
		} else {
			c.mods[key] = rev
		}
		if err := c.event(key, event.Kv.Value, deleted); err != nil {
			c.violate(key, "Encoding", "%v", err)
		}
	}
	for resource, n := range c.current.objects {
		if n > 1 {
			c.violate(resource, "OneEvent", "%d objects of one resource have the revision, so that a watch may lose one", n)
		}
	}
	c.checkRecords()
	for key := range c.current.leases {
		c.checkLease(key)
	}
	for name := range c.current.nodes {
		c.checkNode(name)
	}
	for key := range c.current.index {
		c.checkIndex(key)
	}
}

func (c *Checker) event(key string, value []byte, deleted bool) error {
	if id, ok := strings.CutPrefix(key, indexPrefix); ok {
		if chain, ok := strings.CutPrefix(id, checkpointIndex); ok {
			if deleted {
				c.violate(key, "Ledger", "the checkpoint was deleted")
				return nil
			}
			c.checkpoint(key, chain, string(value))
		}
		if kind, _, _ := strings.Cut(id, "/"); !slices.Contains(indexKinds, kind) {
			return nil
		}
		c.current.index[id] = true
		if deleted {
			delete(c.index, id)
		} else {
			c.index[id] = string(value)
		}
		return nil
	}
	for resource, apply := range map[string]func(string, []byte, bool) error{
		nodePrefix: c.node, leasePrefix: c.lease, instancePrefix: c.instance, imagePrefix: c.image, recordPrefix: c.record,
	} {
		if name, ok := strings.CutPrefix(key, resource); ok {
			c.current.objects[resource]++
			return apply(name, value, deleted)
		}
	}
	return nil
}

// keep decodes and stores a version of an object. It returns nil if the object is deleted.
func keep[T object](c *Checker, key string, value []byte, deleted bool, old, into T, exists bool) (T, error) {
	var none T
	if deleted {
		if exists {
			c.gone[old.GetUID()] = true
		}
		return none, nil
	}
	obj, err := decode(value, into)
	if err != nil {
		return none, err
	}
	c.written[write{key, c.rev}] = Sum(obj)
	if !exists {
		c.created[key] = true
	} else if old.GetUID() != obj.GetUID() {
		c.violate(key, "Identity", "the UID changes from %s to %s", old.GetUID(), obj.GetUID())
	}
	return obj, nil
}
