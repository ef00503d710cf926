package check

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestClean(t *testing.T) {
	s := tell(t)
	c := s.check()
	n, violations := c.Violations()
	require.Zero(t, n, "%v", violations)
	assert.EqualValues(t, len(s.steps), c.Revisions())
	assert.EqualValues(t, 1, c.Records()[rackv1alpha1.LeaseReleased])
}

// Old records are behind a checkpoint.
func TestExpiry(t *testing.T) {
	s := tell(t)
	first := s.steps[bound][recordPrefix+"acme/c07x-000000000001"].(*rackv1alpha1.AuditRecord)
	s.later()
	s.step(map[string]any{indexPrefix + "ledger-checkpoint/c07x": head(first)})
	s.step(map[string]any{recordPrefix + "acme/c07x-000000000001": nil})
	n, violations := s.check().Violations()
	assert.Zero(t, n, "%v", violations)
}

// A Mac that is removed from the fleet leaves its quarantine, and that is recorded.
func TestQuarantinedMacRemoved(t *testing.T) {
	remove := func(recorded bool) *Checker {
		s := tell(t)
		next := func(kind rackv1alpha1.AuditRecordType) (string, *rackv1alpha1.AuditRecord) {
			return s.append(kind, at(25), func(r *rackv1alpha1.AuditRecord) { r.Tenant, r.Lease = "acme", nil })
		}
		key, quarantined := next(rackv1alpha1.NodeQuarantined)
		s.node = s.node.DeepCopy()
		s.node.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck}
		s.step(map[string]any{nodeKey: s.node, key: quarantined, headKey: head(quarantined)})
		gone := map[string]any{nodeKey: nil, indexPrefix + "serial-number/C07X": nil}
		if recorded {
			key, recovered := next(rackv1alpha1.NodeRecovered)
			gone[key], gone[headKey] = recovered, head(recovered)
		}
		s.step(gone)
		return s.check()
	}
	n, violations := remove(true).Violations()
	assert.Zero(t, n, "%v", violations)
	n, violations = remove(false).Violations()
	require.EqualValues(t, 1, n, "%v", violations)
	assert.Contains(t, violations[0].String(), "NodeRecovered is not recorded")
}

// Each planted violation is found and named.
func TestPlanted(t *testing.T) {
	lease := func(s *story, step int) *rackv1alpha1.MacNodeLease {
		return s.steps[step][leaseKey].(*rackv1alpha1.MacNodeLease)
	}
	node := func(s *story, step int) *rackv1alpha1.MacNode { return s.steps[step][nodeKey].(*rackv1alpha1.MacNode) }
	instance := func(s *story, step int) *instancev1alpha1.MacOSInstance {
		return s.steps[step][instanceKey].(*instancev1alpha1.MacOSInstance)
	}
	record := func(s *story, n int) (map[string]any, string, *rackv1alpha1.AuditRecord) {
		key := fmt.Sprintf("%sacme/c07x-%012d", recordPrefix, n)
		for _, step := range s.steps {
			if r, ok := step[key].(*rackv1alpha1.AuditRecord); ok {
				return step, key, r
			}
		}
		s.t.Fatalf("record %d not found", n)
		return nil, "", nil
	}
	// another adds an instance to a step of the story, with a slot or without.
	another := func(s *story, step int, name string, slot bool) {
		i := instance(s, created).DeepCopy()
		i.Name, i.UID = name, types.UID("uid-"+name)
		s.steps[step][instancePrefix+"acme/"+name] = i
		s.steps[step][indexPrefix+"image-use/macos%2Fuid-"+name] = "acme/" + name
		if slot {
			l := lease(s, created)
			if have, ok := s.steps[step][leaseKey]; ok {
				l = have.(*rackv1alpha1.MacNodeLease)
			}
			l = l.DeepCopy()
			l.Status.Instances = append(l.Status.Instances, rackv1alpha1.LeaseSlot{Name: name, UID: i.UID})
			s.steps[step][leaseKey] = l
		}
	}
	for name, tt := range map[string]struct {
		plant func(*story)
		rule  string
		text  string
	}{
		"a third slot": {func(s *story) {
			second := map[string]any{}
			s.steps = append(s.steps[:created+1:created+1], second, map[string]any{})
			another(s, created+1, "vm-2", true)
			s.steps[created+2][leaseKey] = s.steps[created+1][leaseKey]
			another(s, created+2, "vm-3", true)
		}, "TwoVMsPerChassis", "3 slots are taken"},
		"an instance without a slot": {func(s *story) { lease(s, created).Status.Instances = nil }, "Slots", "has no slot"},
		"a slot without an instance": {func(s *story) { lease(s, finished).Status.Instances = lease(s, held).Status.Instances }, "Slots", "has ended or never was"},
		"two leases on a Mac": {func(s *story) {
			other := lease(s, bound).DeepCopy()
			other.Name, other.UID = "other", "other"
			pending := s.lease.DeepCopy()
			*pending = *other
			pending.Finalizers, pending.Status = nil, rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending}
			s.steps = append(s.steps[:bound+1:bound+1], map[string]any{leasePrefix + "acme/other": pending}, map[string]any{leasePrefix + "acme/other": other})
		}, "OneTenantPerChassis", "its Mac mac-1 has lease"},
		"a Mac that goes to another lease": {func(s *story) {
			n := node(s, bound).DeepCopy()
			n.Status.LeaseRef.UID, n.Status.LeaseRef.Name = "other", "other"
			s.steps = append(s.steps[:bound+1:bound+1], map[string]any{nodeKey: n})
		}, "OneTenantPerChassis", "it goes from lease lease to lease other"},
		"a leased Mac that is deleted": {func(s *story) {
			s.steps = append(s.steps[:bound+1:bound+1], map[string]any{nodeKey: nil, indexPrefix + "serial-number/C07X": nil})
		}, "OneTenantPerChassis", "is deleted"},
		"a Mac that was not available": {func(s *story) { node(s, seen).Status.Phase = rackv1alpha1.MacNodeMaintenance }, "OneTenantPerChassis", "leased while it is Maintenance"},
		"a wrong count of VMs":         {func(s *story) { node(s, identified).Status.RunningVMs = 0 }, "RunningVMs", "it counts 0 virtual machines, and 1 run"},
		"an identity that is not taken": {func(s *story) {
			delete(s.steps[identified], indexPrefix+"machine-id/bWFj")
		}, "Index", `the index key is "", not "acme/vm"`},
		"an identity that is not freed": {func(s *story) {
			delete(s.steps[finished], indexPrefix+"mac-address/02:00:00:00:00:01")
		}, "Index", `the index key is "acme/vm", not ""`},
		"an identity of two instances": {func(s *story) {
			another(s, identified, "vm-2", false)
			s.steps[identified][instancePrefix+"acme/vm-2"].(*instancev1alpha1.MacOSInstance).Status.MachineID = "bWFj"
		}, "Unique", "machine-id bWFj also belongs to"},
		"a start that was not granted": {func(s *story) { instance(s, identified).Status.StartGrantedAt = nil }, "Grant", "its start was not granted"},
		"a start granted to a stopping instance": {func(s *story) {
			instance(s, identified).Status.StopRequest = &instancev1alpha1.StopRequest{At: *at(1)}
		}, "Grant", "its start is granted while it is Starting"},
		"a serial number of two Macs": {func(s *story) {
			s.steps[seen][nodePrefix+"mac-2"] = &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-2", UID: "node-2"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07X"}}
			delete(s.steps[seen], nodeKey)
		}, "Unique", "serial-number C07X also belongs to"},
		"an image that is deleted in use": {func(s *story) { s.steps[identified][imagePrefix+"macos"] = nil }, "Image", "deleted while it is used"},
		"an instance on a pending lease": {func(s *story) {
			s.steps = append(s.steps[:asked+1:asked+1], s.steps[created])
		}, "OneTenantPerChassis", ""},
		"an instance at a lease that is released": {func(s *story) {
			s.steps = append(s.steps[:releasing+1:releasing+1], map[string]any{instanceKey: instance(s, created)})
		}, "TwentyFourHours", "created while its lease acme/build is Releasing"},
		"a hold that does not mark an instance": {func(s *story) { lease(s, held).Status.Instances[0].Stop = false }, "Slots", "the mark of instance vm is false, wanted true"},
		"a mark without a hold":                 {func(s *story) { lease(s, created).Status.Instances[0].Stop = true }, "Slots", "the mark of instance vm is true, wanted false"},
		"an instance created after the floor": {func(s *story) {
			i := instance(s, created).DeepCopy()
			i.CreationTimestamp, i.UID = *at(25), "late"
			s.steps = append(s.steps[:gone+1:gone+1], map[string]any{instanceKey: i})
		}, "TwentyFourHours", "after the floor"},
		"an instance on another lease's Mac": {func(s *story) { instance(s, created).Status.NodeName = "mac-9" }, "OneTenantPerChassis", "it is on Mac mac-9"},
		"an instance that starts again": {func(s *story) {
			s.steps = append(s.steps[:finished+1:finished+1], map[string]any{instanceKey: instance(s, started)})
		}, "Phase", "it has ended as Stopped"},
		"an instance deleted too early": {func(s *story) {
			s.steps = append(s.steps[:started+1:started+1], map[string]any{instanceKey: nil})
		}, "Slots", "deleted before its end"},
		"a short floor": {func(s *story) {
			lease(s, bound).Status.EarliestReleaseAt, node(s, bound).Status.EarliestReleaseAt = at(23), at(23)
		}, "TwentyFourHours", "has its floor at"},
		"a floor that moves back": {func(s *story) {
			l, n := lease(s, bound).DeepCopy(), node(s, bound).DeepCopy()
			l.Spec.MinimumDuration = scalar.NewDuration(48 * time.Hour)
			l.Status.EarliestReleaseAt, n.Status.EarliestReleaseAt = at(48), at(48)
			s.steps = append(s.steps[:bound+1:bound+1], map[string]any{leaseKey: l, nodeKey: n}, map[string]any{leaseKey: lease(s, bound), nodeKey: node(s, bound)})
		}, "TwentyFourHours", "its floor moves back"},
		"an early release": {func(s *story) {
			step, _, r := record(s, 5)
			r.Time, r.Details.ReleasedAt = metav1.NewMicroTime(noon.Add(23*time.Hour)), at(23)
			s.hash(r)
			step[headKey] = head(r)
		}, "Ledger", "before the floor"},
		"a release without a scrub": {func(s *story) { node(s, scrubbed).Status.Scrub.LeaseUID = "other" }, "Release", "not scrubbed"},
		"a release of a bound lease": {func(s *story) {
			s.steps = append(s.steps[:bound+1:bound+1], map[string]any{leaseKey: nil})
		}, "TwentyFourHours", "released while it is Bound"},
		"a lease without its finalizer": {func(s *story) { lease(s, created).Finalizers = nil }, "TwentyFourHours", "no finalizer"},
		"a record that is missing": {func(s *story) {
			step, key, _ := record(s, 1)
			delete(step, key)
		}, "Ledger", "LeaseBound is not recorded"},
		"a record without a change": {func(s *story) {
			key, r := s.append(rackv1alpha1.LeaseBound, at(24), func(*rackv1alpha1.AuditRecord) {})
			s.step(map[string]any{key: r, headKey: head(r)})
		}, "Ledger", "a change that was not made"},
		"a record that is edited": {func(s *story) {
			step, key, r := record(s, 2)
			r = r.DeepCopy()
			r.Actor.Username = "nobody"
			step[key] = r
		}, "Ledger", "its hash is"},
		"a record that is changed later": {func(s *story) {
			_, key, r := record(s, 2)
			s.step(map[string]any{key: r})
		}, "Ledger", "it was changed"},
		"a record that is deleted": {func(s *story) {
			_, key, _ := record(s, 2)
			s.step(map[string]any{key: nil})
		}, "Ledger", "it was deleted at the age of 22h"},
		"a record that is deleted without a checkpoint": {func(s *story) {
			_, key, _ := record(s, 2)
			s.later()
			s.step(map[string]any{key: nil})
		}, "Ledger", "the checkpoint of its chain is at 0"},
		"a checkpoint that is wrong": {func(s *story) {
			s.step(map[string]any{indexPrefix + "ledger-checkpoint/c07x": "2 x 0"})
		}, "Ledger", "the checkpoint is"},
		"a chain that is broken": {func(s *story) {
			step, _, r := record(s, 3)
			r.PreviousHash = strings.Repeat("0", 64)
			s.hash(r)
			step[headKey] = head(r)
		}, "Ledger", "it follows 2"},
		"a chain that runs back": {func(s *story) {
			step, _, r := record(s, 3)
			r.Time = metav1.NewMicroTime(noon.Add(time.Hour))
			s.hash(r)
			step[headKey] = head(r)
		}, "Ledger", "before the last record's"},
		"a head that is wrong": {func(s *story) { s.steps[identified][headKey] = "2 x 0" }, "Index", "ledger-head"},
		"a wrong number in a record": {func(s *story) {
			step, _, r := record(s, 2)
			r.Details.LocalVMs = ptr.To[int32](2)
			s.hash(r)
			step[headKey] = head(r)
		}, "Ledger", "counts 1 virtual machines"},
		"two objects of a resource at once": {func(s *story) { another(s, created, "vm-2", true) }, "OneEvent", "2 objects"},
		"an object not in protobuf":         {func(s *story) { s.steps[created][instanceKey] = "{}" }, "Encoding", "protobuf"},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			tt.plant(s)
			n, violations := s.check().Violations()
			assert.NotZero(t, n)
			for _, v := range violations {
				if v.Rule == tt.rule && strings.Contains(v.String(), tt.text) {
					return
				}
			}
			t.Errorf("not found: %v", violations)
		})
	}
}

func TestAcks(t *testing.T) {
	s := tell(t)
	c := s.check()
	good := []Ack{
		{Kind: Written, Key: leaseKey, Revision: bound + 2, Sum: Sum(s.steps[bound][leaseKey].(*rackv1alpha1.MacNodeLease))},
		{Kind: Gone, Key: instanceKey, UID: "instance"},
		{Kind: Bound, Key: leaseKey, Node: "mac-1"},
		{Kind: Released, Key: leaseKey},
		{Kind: Stopped, Key: instanceKey},
	}
	c.CheckAcks(good)
	n, violations := c.Violations()
	require.Zero(t, n, "%v", violations)
	for _, lie := range []Ack{
		{Kind: Written, Key: leaseKey, Revision: 99, Sum: good[0].Sum},
		{Kind: Written, Key: leaseKey, Revision: bound + 2, Sum: 1},
		{Kind: Gone, Key: nodeKey, UID: "node"},
		{Kind: Bound, Key: leaseKey, Node: "mac-2"},
		{Kind: Released, Key: leasePrefix + "acme/other"},
		{Kind: Stopped, Key: instancePrefix + "acme/other"},
	} {
		c := s.check()
		c.CheckAcks([]Ack{lie})
		n, _ := c.Violations()
		assert.EqualValues(t, 1, n, "%+v", lie)
	}
}

func TestHistories(t *testing.T) {
	op := func(kind OpKind, call, end int, items ...string) Op {
		return Op{Kind: kind, Items: items, Call: time.Duration(call), Return: time.Duration(end)}
	}
	maybe := func(op Op) Op {
		op.Unknown = true
		return op
	}
	for name, tt := range map[string]struct {
		ops  []Op
		want bool
	}{
		"in turn":                             {[]Op{op(Take, 1, 2, "a"), op(Take, 3, 4, "b"), op(Full, 5, 6, "c"), op(Drop, 7, 8, "a"), op(Take, 9, 10, "c"), op(Read, 11, 12, "b", "c")}, true},
		"at the same time":                    {[]Op{op(Take, 1, 10, "a"), op(Take, 1, 10, "b"), op(Drop, 1, 10, "a"), op(Take, 1, 10, "c")}, true},
		"three":                               {[]Op{op(Take, 1, 2, "a"), op(Take, 3, 4, "b"), op(Take, 5, 6, "c")}, false},
		"a refusal without a cause":           {[]Op{op(Take, 1, 2, "a"), op(Full, 3, 4, "b")}, false},
		"a read of an item never added":       {[]Op{op(Take, 1, 2, "a"), op(Read, 3, 4, "a", "b")}, false},
		"a read of a dropped item":            {[]Op{op(Take, 1, 2, "a"), op(Drop, 3, 4, "a"), op(Read, 5, 6, "a")}, false},
		"a take that may have happened":       {[]Op{maybe(op(Take, 1, 2, "vm")), op(Take, 3, 4, "b"), op(Full, 5, 6, "c")}, true},
		"a take that may not have happened":   {[]Op{maybe(op(Take, 1, 2, "vm")), op(Read, 3, 4)}, true},
		"a take that did not happen":          {[]Op{maybe(op(Take, 1, 2, "never")), op(Take, 3, 4, "b"), op(Full, 5, 6, "c")}, false},
		"a drop that may have happened later": {[]Op{op(Take, 1, 2, "vm"), maybe(op(Drop, 3, 4, "vm")), op(Read, 5, 6, "vm"), op(Read, 7, 8)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := tell(t).check() // with an instance vm and no other
			h := &Histories{}
			for _, op := range tt.ops {
				for i, item := range op.Items {
					op.Items[i] = "acme/" + item
				}
				h.Add(leaseKey, op)
			}
			tables, _, undecided := c.CheckHistories(h, time.Minute)
			assert.Equal(t, 1, tables)
			assert.Zero(t, undecided)
			n, _ := c.Violations()
			assert.Equal(t, tt.want, n == 0)
		})
	}
	// A Mac has room for one lease.
	c := tell(t).check()
	h := &Histories{}
	h.Add(nodeKey, op(Take, 1, 2, "acme/build"))
	h.Add(nodeKey, op(Take, 3, 4, "acme/other"))
	c.CheckHistories(h, time.Minute)
	n, _ := c.Violations()
	assert.EqualValues(t, 1, n)
}

// Many violations of one rule do not hide another's.
func TestViolationsOfEachRule(t *testing.T) {
	c := New()
	for range 5000 {
		c.violate("a", "Slots", "again")
	}
	c.violate("b", "Index", "once")
	n, violations := c.Violations()
	assert.EqualValues(t, 5001, n)
	assert.Len(t, violations, maxViolations+1)
	assert.Equal(t, "Index", violations[maxViolations].Rule)
}
