package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(hours float64) *metav1.Time {
	t := metav1.NewTime(noon.Add(time.Duration(hours * float64(time.Hour))))
	return &t
}

// story is a history with one transaction per step. A nil value is a deletion.
type story struct {
	t     *testing.T
	steps []map[string]any

	node     *rackv1alpha1.MacNode
	lease    *rackv1alpha1.MacNodeLease
	instance *instancev1alpha1.MacOSInstance
	last     *rackv1alpha1.AuditRecord
}

func (s *story) step(writes map[string]any) { s.steps = append(s.steps, writes) }

// append returns the next record of the Mac, and its key.
func (s *story) append(kind rackv1alpha1.AuditRecordType, when *metav1.Time, change func(*rackv1alpha1.AuditRecord)) (string, *rackv1alpha1.AuditRecord) {
	r := &rackv1alpha1.AuditRecord{
		Type: kind, Time: metav1.NewMicroTime(when.Time), Tenant: "acme", Sequence: 1,
		Chassis: rackv1alpha1.AuditChassis{NodeName: "mac-1", SerialNumber: "C07X"},
		Lease:   &rackv1alpha1.AuditReference{Namespace: "acme", Name: "build", UID: "lease"},
	}
	if s.last != nil {
		r.Sequence, r.PreviousHash = s.last.Sequence+1, s.last.Hash
	}
	r.Namespace, r.Name = "acme", fmt.Sprintf("c07x-%012d", r.Sequence)
	change(r)
	s.hash(r)
	s.last = r
	return recordPrefix + "acme/" + r.Name, r
}

func (s *story) hash(r *rackv1alpha1.AuditRecord) {
	data, err := canonical(r, "apiVersion", "kind", "metadata", "hash")
	require.NoError(s.t, err)
	sum := sha256.Sum256(data)
	r.Hash = hex.EncodeToString(sum[:])
}

func head(r *rackv1alpha1.AuditRecord) string {
	return fmt.Sprintf("%d %s %d", r.Sequence, r.Hash, r.Time.UnixMicro())
}

const (
	nodeKey     = nodePrefix + "mac-1"
	leaseKey    = leasePrefix + "acme/build"
	instanceKey = instancePrefix + "acme/vm"
	headKey     = indexPrefix + "ledger-head/c07x"
)

// Steps of the story.
const (
	added = iota
	seen
	asked
	bound
	created
	identified
	started
	held
	finished
	gone
	releasing
	scrubbed
	released
)

// tell returns a regular day of a Mac.
func tell(t *testing.T) *story {
	s := &story{t: t}
	node := func(change func(*rackv1alpha1.MacNode)) *rackv1alpha1.MacNode {
		s.node = s.node.DeepCopy()
		change(s.node)
		return s.node
	}
	lease := func(change func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
		s.lease = s.lease.DeepCopy()
		change(s.lease)
		return s.lease
	}
	instance := func(change func(*instancev1alpha1.MacOSInstance)) *instancev1alpha1.MacOSInstance {
		s.instance = s.instance.DeepCopy()
		change(s.instance)
		return s.instance
	}

	s.node = &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "node"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07X", ClassName: "base"}}
	s.step(map[string]any{
		nodeKey:                            s.node,
		indexPrefix + "serial-number/C07X": "mac-1",
	})
	s.step(map[string]any{
		nodeKey:               node(func(n *rackv1alpha1.MacNode) { n.Status.Phase = rackv1alpha1.MacNodeAvailable }),
		imagePrefix + "macos": &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "macos", UID: "image"}},
	})
	s.lease = &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "lease"},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending},
	}
	s.step(map[string]any{leaseKey: s.lease})

	key, record := s.append(rackv1alpha1.LeaseBound, at(0), func(r *rackv1alpha1.AuditRecord) { r.Details.BoundAt, r.Details.EarliestReleaseAt = at(0), at(24) })
	s.step(map[string]any{
		leaseKey: lease(func(l *rackv1alpha1.MacNodeLease) {
			l.Finalizers = []string{"macrack.io/floor"}
			l.Status.Phase, l.Status.NodeName, l.Status.SerialNumber, l.Status.BoundAt, l.Status.EarliestReleaseAt = rackv1alpha1.MacNodeLeaseBound, "mac-1", "C07X", at(0), at(24)
		}),
		nodeKey: node(func(n *rackv1alpha1.MacNode) {
			n.Status.Phase, n.Status.EarliestReleaseAt = rackv1alpha1.MacNodeLeased, at(24)
			n.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build", UID: "lease"}
		}),
		key: record, headKey: head(record),
	})

	s.instance = &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "vm", UID: "instance", CreationTimestamp: *at(1), OwnerReferences: []metav1.OwnerReference{{UID: "lease"}}},
		Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: "build", ImageName: "macos"},
		Status:     instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstancePending, NodeName: "mac-1", SerialNumber: "C07X"},
	}
	s.step(map[string]any{
		instanceKey: s.instance,
		leaseKey: lease(func(l *rackv1alpha1.MacNodeLease) {
			l.Status.Instances = []rackv1alpha1.LeaseSlot{{Name: "vm", UID: "instance"}}
		}),
		indexPrefix + "image-use/macos%2Finstance": "acme/vm",
	})
	ofInstance := func(vms int32) func(*rackv1alpha1.AuditRecord) {
		return func(r *rackv1alpha1.AuditRecord) {
			r.Instance = &rackv1alpha1.AuditReference{Namespace: "acme", Name: "vm", UID: "instance"}
			r.Details.LocalVMs, r.Details.MachineID, r.Details.MACAddress = ptr.To(vms), "bWFj", "02:00:00:00:00:01"
		}
	}
	key, record = s.append(rackv1alpha1.InstanceStarted, at(2), ofInstance(1))
	s.step(map[string]any{
		instanceKey: instance(func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Phase, i.Status.MachineID, i.Status.MACAddress = instancev1alpha1.MacOSInstanceStarting, "bWFj", "02:00:00:00:00:01"
			i.Status.StartGrantedAt = at(2)
		}),
		nodeKey:                         node(func(n *rackv1alpha1.MacNode) { n.Status.RunningVMs = 1 }),
		indexPrefix + "machine-id/bWFj": "acme/vm",
		indexPrefix + "mac-address/02:00:00:00:00:01": "acme/vm",
		key: record, headKey: head(record),
	})
	s.step(map[string]any{
		instanceKey: instance(func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Phase, i.Status.StartedAt = instancev1alpha1.MacOSInstanceRunning, at(2)
		}),
	})
	key, record = s.append(rackv1alpha1.LeaseHeld, at(3), func(r *rackv1alpha1.AuditRecord) { r.Details.AttemptedAt, r.Details.EarliestReleaseAt = at(3), at(24) })
	s.step(map[string]any{
		leaseKey: lease(func(l *rackv1alpha1.MacNodeLease) {
			l.DeletionTimestamp, l.Status.Phase, l.Status.HeldAt = at(3), rackv1alpha1.MacNodeLeaseHeld, at(3)
			l.Status.Instances[0].Stop = true
		}),
		key: record, headKey: head(record),
	})
	key, record = s.append(rackv1alpha1.InstanceStopped, at(4), ofInstance(0))
	s.step(map[string]any{
		instanceKey: instance(func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceStopped }),
		leaseKey:    lease(func(l *rackv1alpha1.MacNodeLease) { l.Status.Instances = nil }),
		nodeKey:     node(func(n *rackv1alpha1.MacNode) { n.Status.RunningVMs = 0 }),
		indexPrefix + "image-use/macos%2Finstance":    nil,
		indexPrefix + "machine-id/bWFj":               nil,
		indexPrefix + "mac-address/02:00:00:00:00:01": nil,
		key: record, headKey: head(record),
	})
	s.step(map[string]any{instanceKey: nil})
	s.step(map[string]any{
		leaseKey: lease(func(l *rackv1alpha1.MacNodeLease) { l.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing }),
		nodeKey: node(func(n *rackv1alpha1.MacNode) {
			n.Status.ReleasingSince, n.Status.Phase = at(24), rackv1alpha1.MacNodeReleasing
		}),
	})
	s.step(map[string]any{nodeKey: node(func(n *rackv1alpha1.MacNode) {
		n.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: "lease", FinishedAt: *at(24)}
	})})
	key, record = s.append(rackv1alpha1.LeaseReleased, at(24), func(r *rackv1alpha1.AuditRecord) {
		r.Details.ReleasedAt, r.Details.NodeTaints = at(24), []string{"macrack.io/unleased:NoSchedule"}
	})
	s.step(map[string]any{
		leaseKey: nil,
		nodeKey: node(func(n *rackv1alpha1.MacNode) {
			n.Status.LeaseRef, n.Status.EarliestReleaseAt, n.Status.ReleasingSince, n.Status.Phase = nil, nil, nil, rackv1alpha1.MacNodeAvailable
		}),
		key: record, headKey: head(record),
	})
	return s
}

// check replays the story.
func (s *story) check() *Checker {
	c := New()
	for n, writes := range s.steps {
		var events []*clientv3.Event
		for key, value := range writes {
			event := &clientv3.Event{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: int64(n + 2)}}
			switch v := value.(type) {
			case nil:
				event.Type = mvccpb.Event_DELETE
			case string:
				event.Kv.Value = []byte(v)
			case object:
				event.Kv.Value = stored(s.t, v)
			}
			events = append(events, event)
		}
		c.Apply(int64(n+2), events)
	}
	return c
}

func stored(t *testing.T, obj object) []byte {
	t.Helper()
	raw, err := obj.Marshal()
	require.NoError(t, err)
	envelope, err := (&runtime.Unknown{Raw: raw}).Marshal()
	require.NoError(t, err)
	return append([]byte("k8s\x00"), envelope...)
}

// later adds a refusal when the records of the story are old.
func (s *story) later() {
	key, r := s.append(rackv1alpha1.InstanceRejected, at(100*24), func(*rackv1alpha1.AuditRecord) {})
	s.step(map[string]any{key: r, headKey: head(r)})
}
