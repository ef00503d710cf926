package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/registrytest"
)

// witness returns what the agent of a Mac keeps: the last record that the server shows, the lease,
// and the given instances.
func (f *fleet) witness(name string, instances ...string) *rackv1alpha1.MacNodeWitness {
	f.t.Helper()
	node := f.node(name)
	require.NotNil(f.t, node.Status.Ledger)
	w := &rackv1alpha1.MacNodeWitness{Head: node.Status.Ledger.Head, LeaseRef: node.Status.LeaseRef, EarliestReleaseAt: node.Status.EarliestReleaseAt, Caches: node.Status.Caches}
	for _, instance := range instances {
		i := f.getInstance(node.Status.LeaseRef.Namespace, instance)
		w.Instances = append(w.Instances, rackv1alpha1.WitnessedInstance{
			Name: i.Name, UID: i.UID, ClassName: i.Spec.ClassName, ImageName: i.Spec.ImageName,
			MachineID: i.Status.MachineID, MACAddress: i.Status.MACAddress, StartGrantedAt: i.Status.StartGrantedAt,
		})
	}
	return w
}

// witnessed reports a witness as the agent of a Mac, as a first report does.
func (f *fleet) witnessed(name, serial string, w *rackv1alpha1.MacNodeWitness) *rackv1alpha1.MacNode {
	f.t.Helper()
	return f.report(name, func(status *rackv1alpha1.MacNodeStatus) {
		status.BootID = "boot-1"
		status.Hardware = &rackv1alpha1.MacNodeHardware{ModelIdentifier: "Mac16,10", SerialNumber: serial}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionTrue, Reason: "Healthy"})
		status.Witness = w
	})
}

func running(s *instancev1alpha1.MacOSInstanceStatus) {
	s.Phase = instancev1alpha1.MacOSInstanceRunning
}

func (f *fleet) clearQuarantine(name string) error {
	_, err := f.admin.RackV1alpha1().MacNodes().Patch(f.t.Context(), name, types.MergePatchType, []byte(`{"status":{"quarantine":null}}`), metav1.PatchOptions{}, "status")
	return err
}

// plan returns the plan of a restore, and the hash that the restore needs.
func (f *fleet) plan(name string, wrong ...string) (*rackv1alpha1.MacNodeRestore, error) {
	return f.admin.RackV1alpha1().MacNodes().Restore(f.t.Context(), name, &rackv1alpha1.MacNodeRestore{WrongMacs: wrong}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// restore restores a Mac by its plan, and returns the steps.
func (f *fleet) restore(name string, wrong ...string) ([]string, error) {
	f.t.Helper()
	plan, err := f.plan(name, wrong...)
	if err != nil {
		return nil, err
	}
	plan.WrongMacs = wrong
	result, err := f.admin.RackV1alpha1().MacNodes().Restore(f.t.Context(), name, plan, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	assert.Equal(f.t, plan.Steps, result.Steps)
	return result.Steps, nil
}

// losses returns the records of the beginning of losses.
func (f *fleet) losses(namespaces ...string) (losses []rackv1alpha1.AuditRecord) {
	for _, namespace := range namespaces {
		for _, record := range f.records(namespace) {
			if record.Type == rackv1alpha1.NodeQuarantined && record.Details.WitnessedSequence > 0 {
				losses = append(losses, record)
			}
		}
	}
	return losses
}

// lose makes changes, and returns the fleet as it was before them, on a new etcd.
func (f *fleet) lose(change func()) *fleet {
	f.t.Helper()
	keys := f.backup()
	change()
	f.clock.Step(time.Hour) // the readings in the backup are old
	return f.restored(keys)
}

// backup returns all keys of etcd.
func (f *fleet) backup() map[string]string {
	f.t.Helper()
	resp, err := f.etcd.Client.Get(f.t.Context(), "", clientv3.WithPrefix())
	require.NoError(f.t, err)
	keys := map[string]string{}
	for _, kv := range resp.Kvs {
		keys[string(kv.Key)] = string(kv.Value)
	}
	return keys
}

// restored returns a fleet with a new server on a new etcd with the keys of a backup.
func (f *fleet) restored(keys map[string]string) *fleet {
	f.t.Helper()
	g := &fleet{t: f.t, clock: f.clock, etcd: registrytest.StartEtcd(f.t)}
	for key, value := range keys {
		_, err := g.etcd.Client.Put(f.t.Context(), key, value)
		require.NoError(f.t, err)
	}
	s := registrytest.StartServer(f.t, g.etcd, g.clock)
	g.servers = []*registrytest.Server{s}
	g.admin = s.Client(f.t, "admin", "system:masters")
	g.controllers = s.Client(f.t, "system:serviceaccount:macrack-system:macrack-controllers", "system:serviceaccounts")
	g.acme, g.globex = s.Client(f.t, "acme", "system:authenticated"), s.Client(f.t, "globex", "system:authenticated")
	return g
}

// The MacNode shows each record of the chain, and a Mac that has seen the last one is in order.
func TestWitnessOfAnIntactServer(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	last := func(n int) {
		t.Helper()
		records := f.records("acme")
		require.Len(t, records, n)
		record := records[n-1]
		assert.Equal(t, rackv1alpha1.ChainPosition{Sequence: int64(n), Hash: record.Hash, Namespace: "acme"}, f.node("mac-1").Status.Ledger.Head)
	}
	last(1)
	early := f.witness("mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.start("mac-1", "acme", "one", 1)
	last(2)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))
	require.Error(t, f.create(t.Context(), newInstance("acme", "three", "build")))
	last(3)
	f.deleteLease("acme", "build")
	last(4)
	assert.NotNil(t, f.node("mac-1").Status.LeaseRef.HeldAt)
	for _, w := range []*rackv1alpha1.MacNodeWitness{f.witness("mac-1", "one"), early, nil} {
		node := f.witnessed("mac-1", "C07AAAAA0001", w)
		assert.Nil(t, node.Status.Quarantine)
		assert.Equal(t, w, node.Status.Witness)
	}
	admin := f.node("mac-1")
	admin.Status.Witness, admin.Status.Ledger = early, nil
	admin, err := f.admin.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), admin, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Nil(t, admin.Status.Witness, "only the agent writes it")
	last(4)
}

// After the loss of all of etcd, a Mac keeps its lease and its virtual machine, and a restore
// brings them back as they were.
func TestEmptyEtcd(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.start("mac-1", "acme", "one", 1)
	lost, lostInstance := f.getLease("acme", "build"), f.getInstance("acme", "one")
	w := f.witness("mac-1", "one")
	require.EqualValues(t, 2, w.Head.Sequence)

	g := newFleet(t, 1)
	g.clock.SetTime(noon.Add(2 * time.Hour))
	_, err := g.admin.RackV1alpha1().MacNodes().Create(t.Context(), &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07AAAAA0001", ClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	node := g.witnessed("mac-1", "C07AAAAA0001", w)
	require.NotNil(t, node.Status.Quarantine)
	assert.Equal(t, rackv1alpha1.ReasonLedgerBehind, node.Status.Quarantine.Reason)
	assert.Contains(t, node.Status.Quarantine.Message, "2 records are missing")
	records := g.records("macrack-system")
	require.Len(t, records, 1)
	assert.EqualValues(t, 2, records[0].Details.WitnessedSequence)
	assert.Equal(t, w.Head.Hash, records[0].Details.WitnessedHash)
	report := g.compliance("7d")
	assert.Equal(t, rackv1alpha1.ComplianceIncomplete, report.Verdict)
	require.NotEmpty(t, report.Violations)
	assert.Contains(t, report.Violations[0].Message, "2 records are missing")

	// No binding, no administrator, no reboot, and no report without a witness ends the quarantine.
	_, err = g.acme.RackV1alpha1().MacNodeLeases("globex").Create(t.Context(), newLease("globex", "mine"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, g.bind("globex", "mine", "mac-1"), "is Quarantined")
	err = g.clearQuarantine("mac-1")
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.ErrorContains(t, err, "the Mac serves lease acme/build")
	node = g.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) { s.BootID, s.Witness = "boot-2", nil })
	assert.NotNil(t, node.Status.Quarantine)
	assert.Equal(t, *w, node.Status.Ledger.Loss.Witness)

	planned, err := g.plan("mac-1")
	require.NoError(t, err)
	plan := planned.Steps
	require.Len(t, plan, 3, "%q", plan)
	assert.Contains(t, plan[0], "create lease acme/build (UID "+string(lost.UID)+")")
	assert.Contains(t, plan[0], "no record that could disprove")
	assert.Contains(t, plan[1], "create instance acme/one (UID "+string(lostInstance.UID)+")")
	assert.Contains(t, plan[2], "end the quarantine")
	assert.Nil(t, g.node("mac-1").Status.LeaseRef, "a dry run changes nothing")
	require.Len(t, g.records("acme"), 0)

	steps, err := g.restore("mac-1")
	require.NoError(t, err)
	assert.Equal(t, plan, steps)
	lease, instance, node := g.getLease("acme", "build"), g.getInstance("acme", "one"), g.node("mac-1")
	assert.Equal(t, lost.UID, lease.UID)
	assert.Equal(t, lost.Status.BoundAt, lease.Status.BoundAt)
	assert.Equal(t, lost.Status.EarliestReleaseAt, lease.Status.EarliestReleaseAt)
	assert.Equal(t, lost.Status.Instances, lease.Status.Instances)
	assert.Equal(t, lost.Status.NamespaceUID, lease.Status.NamespaceUID)
	assert.Equal(t, lostInstance.UID, instance.UID)
	assert.Equal(t, lostInstance.Spec, instance.Spec)
	assert.Equal(t, lostInstance.OwnerReferences, instance.OwnerReferences)
	assert.Equal(t, lostInstance.Status.MachineID, instance.Status.MachineID)
	assert.EqualValues(t, 1, node.Status.RunningVMs)
	assert.Equal(t, rackv1alpha1.MacNodeLeased, node.Status.Phase)
	assert.Equal(t, w.Head, *node.Status.Ledger.Accepted)
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound, rackv1alpha1.InstanceStarted, rackv1alpha1.NodeRecovered}, typesOf(g.records("acme")))
	for _, record := range g.records("acme") {
		assert.Equal(t, "Restored", record.Details.Reason)
		assert.Equal(t, "admin", record.Actor.Username)
	}
	assert.Equal(t, "mac-m4-24h", g.records("acme")[0].Details.SKU, "usage bills a restored lease by the SKU")
	again, err := g.restore("mac-1")
	require.NoError(t, err)
	assert.Empty(t, again)
	assert.Equal(t, rackv1alpha1.ComplianceIncomplete, g.compliance("7d").Verdict)

	// The agent continues the chain of the server, and the rules hold as before.
	g.witnessed("mac-1", "C07AAAAA0001", g.witness("mac-1", "one"))
	assert.Nil(t, g.node("mac-1").Status.Quarantine)
	_, err = g.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	require.NoError(t, g.write(g.agent("mac-1"), "acme", "one", running))
	g.deleteLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, g.getLease("acme", "build").Status.Phase)
	assert.Equal(t, lost.Status.EarliestReleaseAt, g.getLease("acme", "build").Status.EarliestReleaseAt)
}

// The instances that were stopped with their lease stop after a restore, too. One that was created
// on the Held lease runs until the floor. The caches stay those of the lease.
func TestRestoredHeldLease(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	requested := withCaches(newLease("acme", "build"), "1Gi")
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), requested, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	require.NoError(t, f.create(t.Context(), newInstance("acme", "before", "build")))
	f.start("mac-1", "acme", "before", 1)
	f.clock.Step(time.Minute)
	f.deleteLease("acme", "build")
	f.clock.Step(time.Minute)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "after", "build")))
	f.start("mac-1", "acme", "after", 2)
	lost := f.getLease("acme", "build")
	w := f.witness("mac-1", "before", "after")

	g := newFleet(t, 1)
	g.advance(noon.Add(2 * time.Hour))
	_, err = g.admin.RackV1alpha1().MacNodes().Create(t.Context(), &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07AAAAA0001", ClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	g.witnessed("mac-1", "C07AAAAA0001", w)
	_, err = g.restore("mac-1")
	require.NoError(t, err)
	lease := g.getLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase)
	assert.ElementsMatch(t, lost.Status.Instances, lease.Status.Instances)
	stops := map[string]bool{}
	for _, slot := range lease.Status.Instances {
		stops[slot.Name] = slot.Stop
	}
	assert.Equal(t, map[string]bool{"before": true, "after": false}, stops)
	assert.Equal(t, requested.Spec.Caches, lease.Spec.Caches)
	assert.Equal(t, requested.Spec.Caches, g.node("mac-1").Status.Caches)
}

// A server on an older state of etcd binds no Mac before its agent has reported. A lease that ended
// in the lost history ends again, but not before its floor.
func TestRestoredBackup(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.mac("mac-3", "C07AAAAA0003")
	f.lease("acme", "old", "mac-1")
	f.lease("acme", "kept", "mac-3")
	kept := f.witness("mac-3")
	f.witnessed("mac-3", "C07AAAAA0003", kept)
	keys := f.backup()

	f.setTime(noon.Add(25 * time.Hour))
	f.deleteLease("acme", "old")
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "old", unleased))
	renewed := f.lease("globex", "new", "mac-1")
	second := f.lease("acme", "second", "mac-2")
	w1, w2 := f.witness("mac-1"), f.witness("mac-2")

	g := f.restored(keys)
	for _, name := range []string{"mac-1", "mac-2", "mac-3"} {
		node := g.node(name)
		assert.True(t, node.Status.Ledger.Unconfirmed, name)
		assert.Nil(t, node.Status.Witness, name)
	}
	assert.Equal(t, rackv1alpha1.MacNodePending, g.node("mac-2").Status.Phase)
	_, err := g.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "third"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, g.bind("acme", "third", "mac-2"), "has not reported")

	// A report made from the MacNode of before the loss has no witness, and confirms nothing.
	stale := g.report("mac-2", func(s *rackv1alpha1.MacNodeStatus) { s.BootID = "boot-2" })
	assert.True(t, stale.Status.Ledger.Unconfirmed)
	assert.ErrorContains(t, g.bind("acme", "third", "mac-2"), "may serve another tenant")
	require.NoError(t, g.create(t.Context(), newInstance("acme", "early", "kept")))
	machineID, macAddress := identityOf(5)
	claim := func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.MachineID, s.MACAddress = instancev1alpha1.MacOSInstanceStarting, machineID, macAddress
	}
	records := len(g.records("acme"))
	err = g.write(g.agent("mac-3"), "acme", "early", claim)
	assert.ErrorContains(t, err, "report it first")
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Len(t, g.records("acme"), records, "a restart of the API servers is not recorded as a refusal of the start")
	_, err = g.plan("mac-1")
	require.NoError(t, err, "no loss is known yet")

	node := g.witnessed("mac-3", "C07AAAAA0003", kept)
	require.NoError(t, g.write(g.agent("mac-3"), "acme", "early", claim))
	assert.False(t, node.Status.Ledger.Unconfirmed)
	assert.Nil(t, node.Status.Quarantine, "its history is complete")
	node = g.witnessed("mac-1", "C07AAAAA0001", w1)
	assert.Equal(t, rackv1alpha1.ReasonLedgerBehind, node.Status.Quarantine.Reason)
	assert.Contains(t, node.Status.Quarantine.Message, "ends at record 1: 2 records are missing")
	assert.True(t, node.Status.Ledger.Loss.LastRecordAt.Time.Equal(noon), "the last record of the backup")
	node = g.witnessed("mac-2", "C07AAAAA0002", w2)
	assert.Equal(t, rackv1alpha1.ReasonLedgerBehind, node.Status.Quarantine.Reason)
	assert.ErrorContains(t, g.bind("acme", "third", "mac-2"), "is Quarantined")

	_, err = g.restore("mac-1")
	assert.ErrorContains(t, err, "rule 3", "the backup has a reading of a server from before the floor")
	require.Eventually(t, func() bool {
		g.clock.Step(5 * time.Second)
		return len(g.readings()) == 1
	}, time.Minute, 50*time.Millisecond)
	steps, err := g.restore("mac-1")
	require.NoError(t, err)
	require.Len(t, steps, 3, "%q", steps)
	assert.Contains(t, steps[0], "release lease acme/old")
	assert.Contains(t, steps[1], "create lease globex/new")
	assert.Equal(t, renewed.UID, g.node("mac-1").Status.LeaseRef.UID)
	assert.Equal(t, renewed.Status.EarliestReleaseAt, g.getLease("globex", "new").Status.EarliestReleaseAt)
	_, err = g.admin.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "old", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)

	_, err = g.restore("mac-2")
	require.NoError(t, err)
	assert.Equal(t, second.Status.BoundAt, g.getLease("acme", "second").Status.BoundAt)
	report := g.compliance("7d")
	assert.Equal(t, rackv1alpha1.ComplianceIncomplete, report.Verdict)
	assert.Zero(t, report.Overlaps)
	assert.Zero(t, report.FloorBreaches)
}

// A Mac that reports a wrong witness puts itself into quarantine, no other Mac, and ends no lease
// early.
func TestLyingWitness(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	lease := f.lease("acme", "build", "mac-1")
	w := f.witness("mac-1")
	lie := w.DeepCopy()
	lie.Head.Hash = "0" + lie.Head.Hash[1:]
	if lie.Head.Hash == w.Head.Hash {
		lie.Head.Hash = "1" + lie.Head.Hash[1:]
	}
	boundAt := metav1.NewTime(noon.Add(time.Hour))
	lie.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "globex", Name: "mine", UID: "00000000-0000-4000-8000-000000000001", BoundAt: &boundAt}
	floor := metav1.NewTime(boundAt.Add(24 * time.Hour))
	lie.EarliestReleaseAt = &floor
	node := f.witnessed("mac-1", "C07AAAAA0001", lie)
	assert.Equal(t, rackv1alpha1.ReasonLedgerForked, node.Status.Quarantine.Reason)
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, f.node("mac-2").Status.Phase)

	f.setTime(noon.Add(30 * time.Hour))
	_, err := f.restore("mac-1")
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.ErrorContains(t, err, "before the floor")
	assert.Equal(t, lease.UID, f.node("mac-1").Status.LeaseRef.UID)
	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, f.getLease("acme", "build").Status.Phase)

	// An older record of the chain that is not the Mac's is found too.
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.mac("mac-4", "C07AAAAA0004")
	f.lease("acme", "other", "mac-4")
	f.deleteLease("acme", "other")
	old := f.witness("mac-4")
	old.Head.Sequence = 1
	node = f.witnessed("mac-4", "C07AAAAA0004", old)
	assert.Equal(t, rackv1alpha1.ReasonLedgerForked, node.Status.Quarantine.Reason)
}
