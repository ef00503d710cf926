package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// A ledger in memory is a Tx that commits at once.
type memory struct {
	clock   *testingclock.FakePassiveClock
	keys    map[string][]byte
	records []*rack.AuditRecord
}

func newMemory() *memory {
	return &memory{clock: testingclock.NewFakePassiveClock(start), keys: map[string][]byte{}}
}

func (m *memory) GetKey(_ context.Context, kind, id string) ([]byte, bool, error) {
	value, ok := m.keys[kind+"/"+id]
	return value, ok, nil
}

func (m *memory) PutKey(kind, id string, value []byte) error {
	m.keys[kind+"/"+id] = value
	return nil
}

func (m *memory) Create(_ context.Context, resource schema.GroupResource, obj runtime.Object) error {
	if resource != (schema.GroupResource{Group: "rack.macrack.io", Resource: "auditrecords"}) {
		return fmt.Errorf("unexpected resource %s", resource)
	}
	m.records = append(m.records, obj.DeepCopyObject().(*rack.AuditRecord))
	return nil
}

func (m *memory) step(d time.Duration) { m.clock.SetTime(m.clock.Now().Add(d)) }

func (m *memory) append(t testing.TB, record *rack.AuditRecord) *rack.AuditRecord {
	t.Helper()
	require.NoError(t, Append(context.Background(), m, m.clock, record))
	return record
}

func newLease(tenant, name string) *rack.MacNodeLease {
	return &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, UID: types.UID(tenant + "-" + name)}}
}

func newNode(name string) *rack.MacNode {
	return &rack.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rack.MacNodeSpec{SerialNumber: strings.ToUpper("C07" + name)},
	}
}

func newInstance(lease *rack.MacNodeLease, name string) *instance.MacOSInstance {
	return &instance.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: name, UID: types.UID(lease.Namespace + "-" + name)},
		Spec:       instance.MacOSInstanceSpec{LeaseName: lease.Name},
		Status: instance.MacOSInstanceStatus{
			NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber,
			MachineID: "id-" + name, MACAddress: "06:00:00:00:00:01", Phase: instance.MacOSInstanceRunning,
		},
	}
}

// bind binds lease to node now, and records it.
func (m *memory) bind(t testing.TB, lease *rack.MacNodeLease, node *rack.MacNode) *rack.AuditRecord {
	t.Helper()
	boundAt := metav1.NewTime(m.clock.Now())
	floor := metav1.NewTime(boundAt.Add(24 * time.Hour))
	lease.Status = rack.MacNodeLeaseStatus{BoundAt: &boundAt, EarliestReleaseAt: &floor, NodeName: node.Name, SerialNumber: node.Spec.SerialNumber}
	node.Status.LeaseRef = &rack.LeaseReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
	return m.append(t, NewLeaseBound(lease, node))
}

func (m *memory) release(t testing.TB, lease *rack.MacNodeLease) *rack.AuditRecord {
	t.Helper()
	return m.append(t, NewLeaseReleased(lease, m.clock.Now(), []string{"macrack.io/unleased:NoSchedule"}))
}

func TestAppend(t *testing.T) {
	m := newMemory()
	lease, node := newLease("acme", "build"), newNode("mac1")
	ctx := genericapirequest.WithUser(audit.WithAuditContext(context.Background()), &user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev", "system:authenticated"}})
	audit.WithAuditID(ctx, "request-1")

	m.bind(t, lease, node)
	m.clock.SetTime(start.Add(time.Hour + 123456789*time.Nanosecond))
	require.NoError(t, Append(ctx, m, m.clock, NewLeaseHeld(lease, m.clock.Now())))
	m.step(30 * time.Hour)
	m.release(t, lease)

	first, second, third := m.records[0], m.records[1], m.records[2]
	assert.Equal(t, "acme", first.Namespace)
	assert.Equal(t, "c07mac1-000000000001", first.Name)
	assert.Equal(t, int64(1), first.Sequence)
	assert.Empty(t, first.PreviousHash)
	assert.NotEmpty(t, first.UID)
	assert.Empty(t, first.Actor)
	assert.Equal(t, start, first.Time.Time)
	assert.Equal(t, &metav1.Time{Time: start.Add(24 * time.Hour)}, first.Details.EarliestReleaseAt)

	assert.Equal(t, "c07mac1-000000000002", second.Name)
	assert.Equal(t, first.Hash, second.PreviousHash)
	assert.Equal(t, rack.AuditActor{Username: "alice", UID: "7", Groups: []string{"dev", "system:authenticated"}}, second.Actor)
	assert.Equal(t, "request-1", second.RequestID)
	assert.Equal(t, start.Add(time.Hour+123456*time.Microsecond), second.Time.Time)
	assert.Equal(t, metav1.NewTime(start.Add(time.Hour)), second.CreationTimestamp)
	assert.Equal(t, &metav1.Duration{Duration: 23 * time.Hour}, second.Details.Remaining)
	assert.Equal(t, &rack.AuditReference{Namespace: "acme", Name: "build", UID: "acme-build"}, second.Lease)

	assert.Equal(t, second.Hash, third.PreviousHash)
	assert.Equal(t, rack.AuditChassis{NodeName: "mac1", SerialNumber: "C07MAC1"}, third.Chassis)
	assert.Equal(t, &metav1.Duration{Duration: 31 * time.Hour}, third.Details.Duration)
	for _, record := range m.records {
		assert.Equal(t, Hash(record), record.Hash)
	}
	head, err := DecodeHead(m.keys["ledger-head/c07mac1"])
	require.NoError(t, err)
	assert.Equal(t, Head{Sequence: 3, Hash: third.Hash, Time: third.Time.Time}, head)
}

func TestAppendNeverGoesBack(t *testing.T) {
	m := newMemory()
	node := newNode("mac1")
	m.append(t, NewNodeQuarantined(node))
	m.step(-time.Hour)

	now, err := Now(context.Background(), m, m.clock, "C07MAC1")
	require.NoError(t, err)
	assert.Equal(t, start, now)
	assert.Equal(t, start, m.append(t, NewNodeRecovered(node, "", "")).Time.Time)

	other, err := Now(context.Background(), m, m.clock, "C07MAC2")
	require.NoError(t, err)
	assert.Equal(t, start.Add(-time.Hour), other, "the clock of another Mac's chain")
}

func TestAppendReportsBrokenHead(t *testing.T) {
	m := newMemory()
	m.keys["ledger-head/c07mac1"] = []byte("12 abc")
	assert.ErrorContains(t, Append(context.Background(), m, m.clock, NewNodeQuarantined(newNode("mac1"))), "not the head of a chain")
	assert.Empty(t, m.records)
}

func TestNamespaceAndChain(t *testing.T) {
	node := newNode("mac1")
	leased := newNode("mac1")
	leased.Status.LeaseRef = &rack.LeaseReference{Namespace: "globex", Name: "x"}
	unbound := newLease("acme", "pending")
	for name, test := range map[string]struct {
		record           *rack.AuditRecord
		namespace, chain string
	}{
		"of a tenant":                {NewNodeQuarantined(leased), "globex", "c07mac1"},
		"of an unleased Mac":         {NewNodeQuarantined(node), SystemNamespace, "c07mac1"},
		"of two tenants":             {NewCrossTenantRejected("acme", leased, rack.LayerAgent, "", ""), SystemNamespace, "c07mac1"},
		"of a tenant, no Mac":        {NewInstanceRejected(newInstance(unbound, "vm"), nil, rack.LayerRegistry, "", ""), "acme", "tenant-acme"},
		"without a tenant and a Mac": {&rack.AuditRecord{Type: rack.InstanceRejected}, SystemNamespace, "tenant-macrack-system"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.namespace, Namespace(test.record))
			assert.Equal(t, test.chain, Chain(test.record))
			chain, sequence, ok := SplitName(Name(test.chain, 42))
			assert.True(t, ok)
			assert.Equal(t, test.chain, chain)
			assert.Equal(t, int64(42), sequence)
		})
	}
	for _, name := range []string{"", "000000000001", "-000000000001", "a-00000000001", "a-00000000000x", "a-000000000000", "a_000000000001"} {
		_, _, ok := SplitName(name)
		assert.False(t, ok, name)
	}
}

func TestBuilders(t *testing.T) {
	lease := newLease("acme", "build")
	lease.Status.NodeName, lease.Status.SerialNumber = "mac1", "C07MAC1"
	vm := newInstance(lease, "vm")
	leaseRef := &rack.AuditReference{Namespace: "acme", Name: "build", UID: "acme-build"}
	vmRef := &rack.AuditReference{Namespace: "acme", Name: "vm", UID: "acme-vm"}
	chassis := rack.AuditChassis{NodeName: "mac1", SerialNumber: "C07MAC1"}

	assert.Equal(t, &rack.AuditRecord{
		Type: rack.InstanceStarted, Chassis: chassis, Tenant: "acme", Lease: leaseRef, Instance: vmRef,
		Details: rack.AuditDetails{LocalVMs: ptr.To[int32](1), MachineID: "id-vm", MACAddress: "06:00:00:00:00:01"},
	}, NewInstanceStarted(vm, lease, 1))

	vm.Status.Phase = instance.MacOSInstanceFailed
	vm.Status.Message = "the guest panicked"
	assert.Equal(t, rack.AuditDetails{
		LocalVMs: ptr.To[int32](0), MachineID: "id-vm", MACAddress: "06:00:00:00:00:01", Reason: "Failed", Message: "its virtual machine never ran: the guest panicked",
	}, NewInstanceStopped(vm, lease, 0).Details)
	vm.Status.StartedAt = ptr.To(metav1.Now())
	assert.Equal(t, "the guest panicked", NewInstanceStopped(vm, lease, 0).Details.Message)
	vm.Status.StopRequest = &instance.StopRequest{Reason: "LeaseHeld"}
	assert.Equal(t, "LeaseHeld", NewInstanceStopped(vm, nil, 0).Details.Reason)

	created := &instance.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "third"}, Spec: instance.MacOSInstanceSpec{LeaseName: "build"}}
	rejected := NewInstanceRejected(created, lease, rack.LayerRegistry, "NoFreeSlot", "two run")
	assert.Equal(t, chassis, rejected.Chassis, "the chassis is the lease's before the instance has one")
	assert.Equal(t, rack.AuditDetails{Layer: rack.LayerRegistry, Reason: "NoFreeSlot", Message: "two run"}, rejected.Details)

	node := newNode("mac1")
	node.Status.Quarantine = &rack.Quarantine{Reason: rack.ReasonKernelQuotaStuck, Message: "refused"}
	assert.Equal(t, rack.AuditDetails{Reason: rack.ReasonKernelQuotaStuck, Message: "refused"}, NewNodeQuarantined(node).Details)

	node.Status.LeaseRef = &rack.LeaseReference{Namespace: "globex", Name: "theirs", UID: "u"}
	cross := NewCrossTenantRejected("acme", node, rack.LayerRegistry, "SerialBound", "no")
	assert.Equal(t, "globex", cross.Tenant)
	assert.Equal(t, "acme", cross.Details.SourceNamespace)
	assert.Equal(t, &rack.AuditReference{Namespace: "globex", Name: "theirs", UID: "u"}, cross.Lease)

	tamper := NewFloorTamperRejected(lease, "FloorMoved", "backwards")
	assert.Equal(t, rack.AuditDetails{Layer: rack.LayerRegistry, Reason: "FloorMoved", Message: "backwards"}, tamper.Details)
	assert.Equal(t, leaseRef, tamper.Lease)
}

// The canonical form is the JSON of the API without four fields, as a library of RFC 8785 encodes
// it.
func TestCanonicalIsTheJSONOfTheAPI(t *testing.T) {
	filler := randfill.NewWithSeed(1).NilChance(0.3).NumElements(0, 3).Funcs(
		func(t *metav1.Time, c randfill.Continue) { t.Time = time.Unix(c.Int63n(1<<33), 0).UTC() },
		func(t *metav1.MicroTime, c randfill.Continue) { t.Time = time.UnixMicro(c.Int63n(1 << 53)).UTC() },
		func(*metav1.ObjectMeta, randfill.Continue) {},
		func(s *string, c randfill.Continue) { *s = randomText(c.Rand) },
		func(d *metav1.Duration, c randfill.Continue) { d.Duration = time.Duration(c.Int63n(1 << 50)) },
		func(n *int64, c randfill.Continue) { *n = c.Int63n(1 << 53) }, // larger ones are no JSON numbers
	)
	for range 2000 {
		var record rack.AuditRecord
		filler.Fill(&record)
		canonical := AppendCanonical(nil, &record)

		var external v1alpha1.AuditRecord
		require.NoError(t, v1alpha1.Convert_rack_AuditRecord_To_v1alpha1_AuditRecord(&record, &external, nil))
		encoded, err := json.Marshal(&external)
		require.NoError(t, err)
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(encoded, &fields))
		for _, field := range []string{"apiVersion", "kind", "metadata", "hash"} {
			delete(fields, field)
		}
		hashed, err := json.Marshal(fields)
		require.NoError(t, err)
		want, err := jcs.Transform(hashed)
		require.NoError(t, err)
		require.Equal(t, string(want), string(canonical))
	}
}

func randomText(r *rand.Rand) string {
	alphabet := []rune("abcXYZ019 \"\\/<>&\n\t\x00\x1f\u007f\b\f\r äß→😀\u2028")
	var b strings.Builder
	for range r.Intn(12) {
		b.WriteRune(alphabet[r.Intn(len(alphabet))])
	}
	return b.String()
}

// The hash of a known record, as computed by jq -cjS 'del(.apiVersion, .kind, .metadata, .hash)' |
// sha256sum.
func TestHashIsStable(t *testing.T) {
	m := newMemory()
	m.bind(t, newLease("acme", "bäu \"1\""), newNode("mac1"))
	m.step(1500 * time.Millisecond)
	m.append(t, NewFloorTamperRejected(newLease("acme", "x"), "FloorMoved", "line 1\nline\t2 <&>"))
	assert.Equal(t, "41ac4394b7f2fa5c06c1368e31ef26fd05b425a3704ae8679627cd06ae1b089a", m.records[0].Hash)
	assert.Equal(t, "69ec933a26e667fd3d0926718fd576d62258f74a419fec7042a95c279030e245", m.records[1].Hash)
}

func TestTextsAreClean(t *testing.T) {
	m := newMemory()
	record := NewNodeQuarantined(newNode("mac1"))
	record.Details.Message = "a\x00b\r\nc\td\x7f\xff→" + strings.Repeat("ü", 3000)
	record.Actor.Groups = make([]string, 100)
	record.Lease = &rack.AuditReference{}
	m.append(t, record)
	assert.True(t, strings.HasPrefix(record.Details.Message, `a\x00b\r`+"\nc\td"+`\x7f`+"\uFFFD→üü"), record.Details.Message[:30])
	assert.InDelta(t, 4096, len(record.Details.Message), 2)
	assert.Equal(t, record.Details.Message, strings.ToValidUTF8(record.Details.Message, ""))
	assert.Len(t, record.Actor.Groups, 64)
	assert.Nil(t, record.Lease)
	assert.Equal(t, Hash(record), record.Hash)
}
