// Package check replays the history of etcd, and reports violations of the three rules, the ledger
// and the index keys. It knows the types of the API and their storage, and shares no code with the
// server.
package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
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

// The rules, written independently of the server.
const (
	slotsPerMac = 2
	floor       = 24 * time.Hour
	retention   = 90 * 24 * time.Hour // of records, at least

	floorFinalizer = "macrack.io/floor"
	systemSpace    = "macrack-system"
)

// Prefixes of keys in etcd.
const (
	prefix          = "/registry/"
	nodePrefix      = prefix + "rack.macrack.io/macnodes/"
	leasePrefix     = prefix + "rack.macrack.io/macnodeleases/"
	recordPrefix    = prefix + "rack.macrack.io/auditrecords/"
	instancePrefix  = prefix + "instance.macrack.io/macosinstances/"
	imagePrefix     = prefix + "image.macrack.io/macosimages/"
	indexPrefix     = prefix + "macrack.io/index/"
	headIndex       = "ledger-head"
	checkpointIndex = "ledger-checkpoint/"
)

// indexKinds are the kinds of index keys about objects.
var indexKinds = []string{"serial-number", "machine-id", "mac-address", "image-use", headIndex}

// NodeKey returns the key of a MacNode in etcd.
func NodeKey(name string) string { return nodePrefix + name }

// LeaseKey returns the key of a MacNodeLease in etcd.
func LeaseKey(namespace, name string) string { return leasePrefix + namespace + "/" + name }

// InstanceKey returns the key of a MacOSInstance in etcd.
func InstanceKey(namespace, name string) string { return instancePrefix + namespace + "/" + name }

// ImageKey returns the key of a MacOSImage in etcd.
func ImageKey(name string) string { return imagePrefix + name }

// A Violation is a state or a change that a rule forbids.
type Violation struct {
	// Revision is the revision of etcd that caused it; 0 if no single revision did.
	Revision int64
	// Subject is a key of etcd, or a name.
	Subject string
	// Rule is the name of the violated rule.
	Rule string
	// Message has the details.
	Message string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: revision %d: %s: %s", v.Rule, v.Revision, v.Subject, v.Message)
}

// maxViolations bounds the kept violations of a rule, so that many of one rule hide no others. All
// are counted.
const maxViolations = 100

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

// Violations returns the number of violations, and the first ones of each rule.
func (c *Checker) Violations() (int64, []Violation) { return c.total, c.violations }

// Revisions returns the number of checked revisions.
func (c *Checker) Revisions() int64 { return c.revisions }

// Records returns the number of records of each type.
func (c *Checker) Records() map[rackv1alpha1.AuditRecordType]int64 { return maps.Clone(c.counts) }

func (c *Checker) violate(subject, rule, format string, args ...any) {
	c.total++
	if c.kept[rule]++; c.kept[rule] <= maxViolations {
		c.violations = append(c.violations, Violation{c.rev, strings.TrimPrefix(subject, prefix), rule, fmt.Sprintf(format, args...)})
	}
}

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

func (c *Checker) node(name string, value []byte, deleted bool) error {
	was, exists := c.nodes[name]
	is, err := keep(c, NodeKey(name), value, deleted, was, &rackv1alpha1.MacNode{}, exists)
	if err != nil {
		return err
	}
	c.current.nodes[name] = true
	c.current.oldNode[name] = was
	if was != nil {
		c.unwant("serial-number", was.Spec.SerialNumber)
		if ref := was.Status.LeaseRef; ref != nil {
			c.current.leases[ref.Namespace+"/"+ref.Name] = true
			if is == nil {
				c.violate(NodeKey(name), "OneTenantPerChassis", "a Mac of lease %s/%s is deleted", ref.Namespace, ref.Name)
			}
		}
	}
	if was != nil && was.Status.Quarantine != nil && (is == nil || is.Status.Quarantine == nil) {
		c.current.changes[change{rackv1alpha1.NodeRecovered, name}]++
	}
	if is == nil {
		delete(c.nodes, name)
		return nil
	}
	if was != nil && was.Status.Quarantine == nil && is.Status.Quarantine != nil {
		c.current.changes[change{rackv1alpha1.NodeQuarantined, name}]++
	}
	c.nodes[name] = is
	c.wants(NodeKey(name), "serial-number", is.Spec.SerialNumber, name)
	if ref := is.Status.LeaseRef; ref != nil {
		c.current.leases[ref.Namespace+"/"+ref.Name] = true
	}
	return nil
}

func (c *Checker) lease(name string, value []byte, deleted bool) error {
	was, exists := c.leases[name]
	is, err := keep(c, leasePrefix+name, value, deleted, was, &rackv1alpha1.MacNodeLease{}, exists)
	if err != nil {
		return err
	}
	c.current.leases[name] = true
	c.current.oldLease[name] = was
	for _, lease := range []*rackv1alpha1.MacNodeLease{was, is} {
		if lease != nil && lease.Status.NodeName != "" {
			c.current.nodes[lease.Status.NodeName] = true
		}
	}
	if is == nil {
		delete(c.leases, name)
	} else {
		c.leases[name] = is
	}
	c.checkLife(leasePrefix+name, was, is)
	return nil
}

// checkStops checks that only a hold marks instances, and that it marks exactly those in the lease.
func (c *Checker) checkStops(key string, old, new *rackv1alpha1.MacNodeLease) {
	marked := map[types.UID]bool{}
	for _, slot := range old.Status.Instances {
		marked[slot.UID] = slot.Stop || old.Status.Phase == rackv1alpha1.MacNodeLeaseBound && new.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
	}
	for _, slot := range new.Status.Instances {
		if slot.Stop != marked[slot.UID] {
			c.violate(key, "Slots", "the mark of instance %s is %t, wanted %t", slot.Name, slot.Stop, marked[slot.UID])
		}
	}
}

// holds reports whether a lease has a Mac.
func holds(lease *rackv1alpha1.MacNodeLease) bool {
	return lease != nil && lease.Status.NodeName != "" && lease.Status.Phase != rackv1alpha1.MacNodeLeaseReleased
}

func floorOf(lease *rackv1alpha1.MacNodeLease) time.Time {
	return lease.Status.BoundAt.Add(max(floor, lease.Spec.MinimumDuration.Value()))
}

var leasePhases = []rackv1alpha1.MacNodeLeasePhase{rackv1alpha1.MacNodeLeasePending, rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld, rackv1alpha1.MacNodeLeaseReleasing, rackv1alpha1.MacNodeLeaseReleased}

// checkLife checks the changes of a lease.
func (c *Checker) checkLife(key string, was, is *rackv1alpha1.MacNodeLease) {
	if was == nil {
		if holds(is) || is.Status.Phase != rackv1alpha1.MacNodeLeasePending {
			c.violate(key, "OneTenantPerChassis", "it is created %s", is.Status.Phase)
		}
		return
	}
	uid := string(was.UID)
	if !holds(was) && holds(is) {
		c.bound[key] = is.Status.NodeName
		c.current.changes[change{rackv1alpha1.LeaseBound, uid}]++
	}
	if holds(was) && !holds(is) {
		c.released[key] = true
		c.current.changes[change{rackv1alpha1.LeaseReleased, uid}]++
		if was.Status.Phase != rackv1alpha1.MacNodeLeaseReleasing {
			c.violate(key, "TwentyFourHours", "it is released while it is %s", was.Status.Phase)
		}
		if n := len(c.live[strings.TrimPrefix(key, leasePrefix)]); n > 0 {
			c.violate(key, "OneTenantPerChassis", "it is released while %d instances have not ended", n)
		}
	}
	if is == nil {
		return
	}
	if was.Status.Phase != rackv1alpha1.MacNodeLeaseHeld && is.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
		c.current.changes[change{rackv1alpha1.LeaseHeld, uid}]++
	}
	c.checkStops(key, was, is)
	if slices.Index(leasePhases, is.Status.Phase) < slices.Index(leasePhases, was.Status.Phase) {
		c.violate(key, "Phase", "it goes back from %s to %s", was.Status.Phase, is.Status.Phase)
	}
	if holds(was) && holds(is) {
		if !is.Status.BoundAt.Equal(was.Status.BoundAt) || is.Status.EarliestReleaseAt.Before(was.Status.EarliestReleaseAt) {
			c.violate(key, "TwentyFourHours", "its floor moves back from %s to %s", was.Status.EarliestReleaseAt, is.Status.EarliestReleaseAt)
		}
		if is.Status.NodeName != was.Status.NodeName {
			c.violate(key, "OneTenantPerChassis", "it moves from %s to %s", was.Status.NodeName, is.Status.NodeName)
		}
	}
	if holds(is) {
		if is.Status.BoundAt == nil || is.Status.EarliestReleaseAt == nil || is.Status.EarliestReleaseAt.Time.Before(floorOf(is)) {
			c.violate(key, "TwentyFourHours", "it is bound at %s and has its floor at %s", is.Status.BoundAt, is.Status.EarliestReleaseAt)
		}
		if !slices.Contains(is.Finalizers, floorFinalizer) {
			c.violate(key, "TwentyFourHours", "it has a Mac and no finalizer")
		}
		if is.DeletionTimestamp != nil && is.Status.Phase == rackv1alpha1.MacNodeLeaseBound {
			c.violate(key, "Phase", "it is deleted and Bound")
		}
	}
}

// checkLease checks a lease against its Mac and its instances.
func (c *Checker) checkLease(name string) {
	lease, key := c.leases[name], leasePrefix+name
	live := c.live[name]
	if lease == nil {
		for instance := range live {
			c.violate(key, "Slots", "it was deleted, but its instance %s has not ended", instance)
		}
		return
	}
	if n := len(lease.Status.Instances); n > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d slots are taken", n)
	}
	if len(live) > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d instances have not ended", len(live))
	}
	for _, slot := range lease.Status.Instances {
		if live[slot.Name] != slot.UID {
			c.violate(key, "Slots", "a slot is taken by %s (%s), which has ended or never was", slot.Name, slot.UID)
		}
	}
	for instance, uid := range live {
		if !slices.ContainsFunc(lease.Status.Instances, func(s rackv1alpha1.LeaseSlot) bool { return s.UID == uid && s.Name == instance }) {
			c.violate(key, "Slots", "instance %s (%s) has no slot", instance, uid)
		}
	}
	if len(live) > 0 && !holds(lease) {
		c.violate(key, "OneTenantPerChassis", "it has %d instances and no Mac", len(live))
	}
	if !holds(lease) {
		return
	}
	node := c.nodes[lease.Status.NodeName]
	if node == nil {
		c.violate(key, "OneTenantPerChassis", "its Mac %s does not exist", lease.Status.NodeName)
		return
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		c.violate(key, "OneTenantPerChassis", "its Mac %s has lease %v", node.Name, ref)
	}
	if node.Spec.SerialNumber != lease.Status.SerialNumber || node.Spec.ClassName != lease.Spec.ClassName ||
		lease.Spec.SerialNumber != "" && lease.Spec.SerialNumber != node.Spec.SerialNumber {
		c.violate(key, "OneTenantPerChassis", "it has Mac %s of class %s for %s of class %s", node.Spec.SerialNumber, node.Spec.ClassName, lease.Status.SerialNumber, lease.Spec.ClassName)
	}
	if !node.Status.EarliestReleaseAt.Equal(lease.Status.EarliestReleaseAt) {
		c.violate(key, "TwentyFourHours", "its floor is %s, its Mac's %s", lease.Status.EarliestReleaseAt, node.Status.EarliestReleaseAt)
	}
	if (node.Status.ReleasingSince != nil) != (lease.Status.Phase == rackv1alpha1.MacNodeLeaseReleasing) {
		c.violate(key, "Phase", "it is %s, and its Mac is releasing since %s", lease.Status.Phase, node.Status.ReleasingSince)
	}
	if since := node.Status.ReleasingSince; since != nil && since.Before(lease.Status.EarliestReleaseAt) {
		c.violate(key, "TwentyFourHours", "its Mac is releasing since %s, before the floor %s", since, lease.Status.EarliestReleaseAt)
	}
}

// checkNode checks a Mac against its lease and its virtual machines.
func (c *Checker) checkNode(name string) {
	node, key := c.nodes[name], NodeKey(name)
	running := len(c.running[name])
	if node == nil {
		if running > 0 {
			c.violate(key, "TwoVMsPerChassis", "it was deleted, but %d virtual machines run on it", running)
		}
		return
	}
	if running > slotsPerMac || node.Status.RunningVMs > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d virtual machines run, and it counts %d", running, node.Status.RunningVMs)
	}
	if running != int(node.Status.RunningVMs) {
		c.violate(key, "RunningVMs", "it counts %d virtual machines, and %d run", node.Status.RunningVMs, running)
	}
	was, changed := c.current.oldNode[name]
	if !changed {
		was = node
	}
	ref := node.Status.LeaseRef
	if ref == nil {
		if running > 0 {
			c.violate(key, "OneTenantPerChassis", "it has no lease, and %d virtual machines run", running)
		}
		if was != nil && was.Status.LeaseRef != nil {
			if was.Status.Scrub == nil || was.Status.Scrub.LeaseUID != was.Status.LeaseRef.UID || len(was.Status.Scrub.Remaining) > 0 {
				c.violate(key, "Release", "it is released and not scrubbed of lease %s", was.Status.LeaseRef.Name)
			}
		}
		return
	}
	lease := c.leases[ref.Namespace+"/"+ref.Name]
	if lease == nil || lease.UID != ref.UID || !holds(lease) || lease.Status.NodeName != name {
		c.violate(key, "OneTenantPerChassis", "it has lease %s/%s (%s), which does not have it", ref.Namespace, ref.Name, ref.UID)
	}
	switch {
	case was == nil:
		c.violate(key, "OneTenantPerChassis", "it is created with a lease")
	case was.Status.LeaseRef == nil && was.Status.Phase != rackv1alpha1.MacNodeAvailable:
		c.violate(key, "OneTenantPerChassis", "it is leased while it is %s", was.Status.Phase)
	case was.Status.LeaseRef != nil && was.Status.LeaseRef.UID != ref.UID:
		c.violate(key, "OneTenantPerChassis", "it goes from lease %s to lease %s", was.Status.LeaseRef.UID, ref.UID)
	}
}

// ended reports whether an instance has ended.
func ended(i *instancev1alpha1.MacOSInstance) bool {
	return i.Status.Phase == instancev1alpha1.MacOSInstanceStopped || i.Status.Phase == instancev1alpha1.MacOSInstanceFailed
}

// runs reports whether an instance counts: from the grant of its start until its end.
func runs(i *instancev1alpha1.MacOSInstance) bool {
	return i != nil && i.Status.StartGrantedAt != nil && !ended(i)
}

func (c *Checker) instance(name string, value []byte, deleted bool) error {
	was, exists := c.instances[name]
	key := instancePrefix + name
	is, err := keep(c, key, value, deleted, was, &instancev1alpha1.MacOSInstance{}, exists)
	if err != nil {
		return err
	}
	if was != nil && !ended(was) {
		c.forget(was)
	}
	if is == nil {
		delete(c.instances, name)
		if was != nil && !ended(was) {
			c.violate(key, "Slots", "it was deleted before its end, in phase %s", was.Status.Phase)
		}
		return nil
	}
	c.instances[name] = is
	if !ended(is) {
		c.remember(key, is)
	}
	if ended(is) || is.Status.StopRequest != nil {
		c.stopped[key] = true
	}
	switch {
	case was == nil:
		c.checkCreation(key, is)
	case ended(was) && is.Status.Phase != was.Status.Phase:
		c.violate(key, "Phase", "it has ended as %s and is %s", was.Status.Phase, is.Status.Phase)
	case was.Status.MachineID != "" && was.Status.MachineID != is.Status.MachineID, was.Status.MACAddress != "" && was.Status.MACAddress != is.Status.MACAddress:
		c.violate(key, "Identity", "it changes its machine ID or MAC address")
	}
	if !runs(was) && runs(is) {
		c.current.changes[change{rackv1alpha1.InstanceStarted, string(is.UID)}]++
	}
	if runs(was) && !runs(is) {
		c.current.changes[change{rackv1alpha1.InstanceStopped, string(is.UID)}]++
	}
	if is.Status.StartGrantedAt == nil && (is.Status.MachineID != "" || is.Status.StartedAt != nil) {
		c.violate(key, "Grant", "it has a machine ID, or runs, and its start was not granted")
	}
	if !runs(was) && runs(is) && (is.Status.StopRequest != nil || is.Status.Phase != instancev1alpha1.MacOSInstanceStarting) {
		c.violate(key, "Grant", "its start is granted while it is %s, stop request %v", is.Status.Phase, is.Status.StopRequest)
	}
	if runs(is) && (is.Status.MachineID == "" || is.Status.MACAddress == "") {
		c.violate(key, "Identity", "it runs without a machine ID or MAC address")
	}
	return nil
}

// remember adds an instance that has not ended.
func (c *Checker) remember(key string, i *instancev1alpha1.MacOSInstance) {
	lease := i.Namespace + "/" + i.Spec.LeaseName
	if c.live[lease] == nil {
		c.live[lease] = map[string]types.UID{}
	}
	c.live[lease][i.Name] = i.UID
	c.current.leases[lease] = true
	if runs(i) {
		if c.running[i.Status.NodeName] == nil {
			c.running[i.Status.NodeName] = map[types.UID]bool{}
		}
		c.running[i.Status.NodeName][i.UID] = true
		c.current.nodes[i.Status.NodeName] = true
	}
	name := i.Namespace + "/" + i.Name
	c.wants(key, "machine-id", i.Status.MachineID, name)
	c.wants(key, "mac-address", i.Status.MACAddress, name)
	c.wants(key, "image-use", i.Spec.ImageName+"/"+string(i.UID), name)
	if c.images[i.Spec.ImageName] == nil {
		c.violate(key, "Image", "its image %s does not exist", i.Spec.ImageName)
	}
}

func (c *Checker) forget(i *instancev1alpha1.MacOSInstance) {
	lease := i.Namespace + "/" + i.Spec.LeaseName
	delete(c.live[lease], i.Name)
	if len(c.live[lease]) == 0 {
		delete(c.live, lease)
	}
	c.current.leases[lease] = true
	if runs(i) {
		delete(c.running[i.Status.NodeName], i.UID)
		c.current.nodes[i.Status.NodeName] = true
	}
	c.unwant("machine-id", i.Status.MachineID)
	c.unwant("mac-address", i.Status.MACAddress)
	c.unwant("image-use", i.Spec.ImageName+"/"+string(i.UID))
}

// checkCreation checks that a lease may have a new instance. Other objects of the same transaction
// are known.
func (c *Checker) checkCreation(key string, is *instancev1alpha1.MacOSInstance) {
	name := is.Namespace + "/" + is.Spec.LeaseName
	lease := c.leases[name]
	switch {
	case lease == nil:
		c.violate(key, "OneTenantPerChassis", "it is created without its lease %s", name)
		return
	case lease.Status.Phase != rackv1alpha1.MacNodeLeaseBound && lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld:
		c.violate(key, "TwentyFourHours", "it is created while its lease %s is %s", name, lease.Status.Phase)
	case lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld && lease.Status.EarliestReleaseAt.Before(&is.CreationTimestamp):
		c.violate(key, "TwentyFourHours", "it is created at %s, after the floor of its lease at %s", is.CreationTimestamp, lease.Status.EarliestReleaseAt)
	}
	if is.Status.NodeName != lease.Status.NodeName || is.Status.SerialNumber != lease.Status.SerialNumber {
		c.violate(key, "OneTenantPerChassis", "it is on Mac %s, its lease has %s", is.Status.NodeName, lease.Status.NodeName)
	}
	if len(is.OwnerReferences) != 1 || is.OwnerReferences[0].UID != lease.UID {
		c.violate(key, "OneTenantPerChassis", "it is not owned by its lease")
	}
}

func (c *Checker) image(name string, value []byte, deleted bool) error {
	was, exists := c.images[name]
	is, err := keep(c, ImageKey(name), value, deleted, was, &imagev1alpha1.MacOSImage{}, exists)
	if err != nil {
		return err
	}
	if is != nil {
		c.images[name] = is
		return nil
	}
	delete(c.images, name)
	for key := range c.want {
		if strings.HasPrefix(key, "image-use/"+url.PathEscape(name+"/")) {
			c.violate(ImageKey(name), "Image", "it is deleted while it is used: %s", key)
		}
	}
	return nil
}

// wants adds an expected index key.
func (c *Checker) wants(key, kind, id, value string) {
	if id == "" {
		return
	}
	at := kind + "/" + url.PathEscape(id)
	if other, taken := c.want[at]; taken {
		c.violate(key, "Unique", "%s %s also belongs to %s", kind, id, other)
	}
	c.want[at] = value
	c.current.index[at] = true
}

func (c *Checker) unwant(kind, id string) {
	if id == "" {
		return
	}
	at := kind + "/" + url.PathEscape(id)
	delete(c.want, at)
	c.current.index[at] = true
}

func (c *Checker) checkIndex(key string) {
	have, exists := c.index[key]
	want, wanted := c.want[key]
	if exists != wanted || have != want {
		c.violate(key, "Index", "the index key is %q, not %q", have, want)
	}
}
