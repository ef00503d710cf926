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

	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

const otherUID = "00000000-0000-4000-8000-000000000002"

// lostLease returns a fleet whose server has lost a lease of mac-1, and the witness of the Mac. The
// lease was bound an hour after the backup.
func lostLease(t *testing.T) (*fleet, *rackv1alpha1.MacNodeWitness) {
	t.Helper()
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "old", "mac-1")
	f.setTime(noon.Add(25 * time.Hour))
	f.deleteLease("acme", "old")
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "old", unleased))
	var w *rackv1alpha1.MacNodeWitness
	g := f.lose(func() {
		f.setTime(noon.Add(26 * time.Hour))
		f.lease("globex", "new", "mac-1")
		w = f.witness("mac-1")
	})
	g.advance(noon.Add(27 * time.Hour))
	return g, w
}

// advance sets the clock of a restored fleet, and waits until the readings of the servers of before
// the loss have expired.
func (f *fleet) advance(now time.Time) {
	f.t.Helper()
	f.clock.SetTime(now)
	require.Eventually(f.t, func() bool {
		f.clock.Step(5 * time.Second)
		return len(f.readings()) == 1
	}, time.Minute, 50*time.Millisecond)
}

// The plan that an administrator has read is the one that is carried out: the agent can change the
// witness afterwards, but the restore follows the one that has revealed the loss.
func TestRestoreFollowsTheReviewedWitness(t *testing.T) {
	g, w := lostLease(t)
	g.witnessed("mac-1", "C07AAAAA0001", w)
	plan, err := g.plan("mac-1")
	require.NoError(t, err)
	require.Len(t, plan.Steps, 2, "%q", plan.Steps)
	lie := w.DeepCopy()
	lie.LeaseRef.Name, lie.LeaseRef.UID = "mine", otherUID
	lie.Head.Sequence++
	node := g.witnessed("mac-1", "C07AAAAA0001", lie)
	assert.Equal(t, *w, node.Status.Ledger.Loss.Witness)
	assert.Len(t, g.losses("macrack-system", "acme"), 1)

	for name, hash := range map[string]string{"no hash": "", "another hash": "0" + plan.WitnessHash[1:] + "0"} {
		_, err := g.admin.RackV1alpha1().MacNodes().Restore(t.Context(), "mac-1", &rackv1alpha1.MacNodeRestore{WitnessHash: hash}, metav1.CreateOptions{})
		assert.Error(t, err, name)
	}
	assert.Nil(t, g.node("mac-1").Status.LeaseRef)
	result, err := g.admin.RackV1alpha1().MacNodes().Restore(t.Context(), "mac-1", plan, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, plan.Steps, result.Steps)
	assert.Equal(t, w.LeaseRef.UID, g.node("mac-1").Status.LeaseRef.UID)

	// The lie is compared with the chain again.
	node = g.witnessed("mac-1", "C07AAAAA0001", lie)
	assert.NotNil(t, node.Status.Quarantine)
}

// No claim of a Mac about the binding or the floor of a lease shortens a floor or makes it endless.
func TestRestoredFloorIsChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*rackv1alpha1.MacNodeWitness)
		want   string
	}{
		"bound before the last record": {func(w *rackv1alpha1.MacNodeWitness) { w.LeaseRef.BoundAt = at(20); w.EarliestReleaseAt = at(44) }, "has its records until"},
		"bound in the future":          {func(w *rackv1alpha1.MacNodeWitness) { w.LeaseRef.BoundAt = at(28); w.EarliestReleaseAt = at(52) }, "in the future"},
		"a short floor":                {func(w *rackv1alpha1.MacNodeWitness) { w.EarliestReleaseAt = at(27) }, "rule 3"},
		"an endless floor":             {func(w *rackv1alpha1.MacNodeWitness) { w.EarliestReleaseAt = at(1e6) }, "lasts at most"},
		"no floor":                     {func(w *rackv1alpha1.MacNodeWitness) { w.EarliestReleaseAt = nil }, "reports no floor"},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := lostLease(t)
			tt.change(w)
			g.witnessed("mac-1", "C07AAAAA0001", w)
			_, err := g.plan("mac-1")
			assert.True(t, apierrors.IsConflict(err), "%v", err)
			assert.ErrorContains(t, err, tt.want)
		})
	}
}

// An existing lease cannot be made endless either.
func TestRaisedFloorIsChecked(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	w := f.witness("mac-1")
	w.Head.Sequence, w.EarliestReleaseAt = 5, at(1e6)
	f.witnessed("mac-1", "C07AAAAA0001", w)
	_, err := f.plan("mac-1")
	assert.ErrorContains(t, err, "lasts at most")
}

func at(hours int) *metav1.Time {
	t := metav1.NewTime(noon.Add(time.Duration(hours) * time.Hour))
	return &t
}

// If two Macs have the same lease in their witnesses, none of them is restored before an
// administrator names the wrong one.
func TestConflictingWitnesses(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	var truth *rackv1alpha1.MacNodeWitness
	g := f.lose(func() {
		f.lease("globex", "new", "mac-2")
		truth = f.witness("mac-2")
	})
	lie := truth.DeepCopy()
	g.witnessed("mac-1", "C07AAAAA0001", lie)
	g.witnessed("mac-2", "C07AAAAA0002", truth)
	for _, name := range []string{"mac-1", "mac-2"} {
		_, err := g.restore(name)
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.ErrorContains(t, err, "one of the two is wrong")
	}
	_, err := g.restore("mac-2", "mac-1")
	require.NoError(t, err)
	assert.Equal(t, "mac-2", g.getLease("globex", "new").Status.NodeName)
	_, err = g.restore("mac-1")
	assert.ErrorContains(t, err, "was bound to Mac")
	assert.ErrorContains(t, g.clearQuarantine("mac-1"), "the Mac serves lease globex/new")
	require.NoError(t, g.admin.RackV1alpha1().MacNodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	left, err := g.etcd.Client.Get(t.Context(), "/registry/macrack.io/index/witness-claim/", clientv3.WithPrefix())
	require.NoError(t, err)
	assert.Empty(t, left.Kvs)
}

// A loss is recorded, and does not end a quarantine for another reason.
func TestLossDuringAnotherQuarantine(t *testing.T) {
	g, w := lostLease(t)
	g.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonLedgerBehind, Message: "a lie"})
	})
	assert.Equal(t, "Unhealthy", g.node("mac-1").Status.Quarantine.Reason, "only the server finds a loss")
	require.NoError(t, g.clearQuarantine("mac-1"))
	unhealthy := func(s *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: "KernelQuotaStuck", Message: "stuck"})
	}
	g.report("mac-1", unhealthy)
	g.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) { s.Witness = w })
	node := g.node("mac-1")
	require.Equal(t, rackv1alpha1.ReasonLedgerForked, node.Status.Quarantine.Reason)
	assert.Equal(t, "KernelQuotaStuck", node.Status.Ledger.Loss.Quarantine.Reason)
	_, err := g.admin.RackV1alpha1().MacNodes().Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"status":{"quarantine":{"endInstances":["uid-1"]}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, []string{"uid-1"}, g.node("mac-1").Status.Quarantine.EndInstances)
	_, err = g.restore("mac-1")
	require.NoError(t, err)
	node = g.node("mac-1")
	require.NotNil(t, node.Status.Quarantine)
	assert.Equal(t, "KernelQuotaStuck", node.Status.Quarantine.Reason)
	assert.Nil(t, node.Status.Ledger.Loss)
	require.NoError(t, g.clearQuarantine("mac-1"))
	assert.Equal(t, rackv1alpha1.MacNodeLeased, g.node("mac-1").Status.Phase)
}

// An etcd that is restored from a backup of during a loss has lost history again.
func TestSecondLoss(t *testing.T) {
	g, w := lostLease(t)
	g.witnessed("mac-1", "C07AAAAA0001", w)
	var later *rackv1alpha1.MacNodeWitness
	h := g.lose(func() {
		_, err := g.restore("mac-1")
		require.NoError(t, err)
		later = g.witness("mac-1")
	})
	h.advance(noon.Add(30 * time.Hour))
	_, err := h.restore("mac-1")
	assert.ErrorContains(t, err, "has not reported its witness")
	node := h.witnessed("mac-1", "C07AAAAA0001", later)
	assert.Equal(t, later.Head, node.Status.Ledger.Loss.Witness.Head)
	assert.True(t, node.Status.Ledger.Loss.LastRecordAt.Time.Before(w.LeaseRef.BoundAt.Time), "the first loss counts")
	assert.Len(t, h.losses("macrack-system", "acme", "globex"), 2)
	_, err = h.restore("mac-1")
	require.NoError(t, err)
	assert.Equal(t, w.LeaseRef.UID, h.node("mac-1").Status.LeaseRef.UID)
}

// A server of an earlier version drops the fields of the witness. The next report brings them back.
func TestServerOfAnEarlierVersion(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	w := f.witness("mac-1")
	f.witnessed("mac-1", "C07AAAAA0001", w)
	drop := func(node *rack.MacNode) { node.Status.Ledger, node.Status.Witness = nil, nil }
	f.changeStored("mac-1", drop)
	require.Eventually(t, func() bool { return f.node("mac-1").Status.Ledger == nil }, time.Minute, 10*time.Millisecond)
	node := f.witnessed("mac-1", "C07AAAAA0001", w)
	assert.Nil(t, node.Status.Quarantine)
	assert.Equal(t, w.Head, node.Status.Ledger.Head)

	w.Head.Sequence = 9
	f.witnessed("mac-1", "C07AAAAA0001", w)
	f.changeStored("mac-1", drop)
	require.Eventually(t, func() bool { return f.node("mac-1").Status.Ledger == nil }, time.Minute, 10*time.Millisecond)
	assert.ErrorContains(t, f.clearQuarantine("mac-1"), "has not reported its witness")
	node = f.witnessed("mac-1", "C07AAAAA0001", w)
	require.NotNil(t, node.Status.Ledger.Loss, "the loss is found again")
}

// A MacNode or a chain that cannot be decoded does not keep the other Macs from being marked.
func TestUnconfirmedDespiteAnUndecodableMac(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.mac("mac-3", "C07AAAAA0003")
	f.mac("mac-4", "C07AAAAA0004")
	f.lease("acme", "build", "mac-3")
	f.lease("acme", "more", "mac-4")
	f.corrupt("rack.macrack.io/macnodes/mac-1", "garbage")
	f.corrupt("macrack.io/index/ledger-head/c07aaaaa0003", "garbage")
	f.corrupt("rack.macrack.io/auditrecords/acme/c07aaaaa0004-000000000001", "garbage")
	f.changeStored("mac-4", func(node *rack.MacNode) { node.Status.Ledger = nil }) // by a server of an earlier version
	g := f.lose(func() {})
	for _, name := range []string{"mac-2", "mac-3", "mac-4"} {
		assert.True(t, g.node(name).Status.Ledger.Unconfirmed, name)
	}
}

// The instances of the backup that the Mac serves get a new placeholder pod, and what was not
// granted in the backup is granted.
func TestRestoredInstances(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.start("mac-1", "acme", "one", 1)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))
	var w *rackv1alpha1.MacNodeWitness
	g := f.lose(func() {
		f.start("mac-1", "acme", "two", 2)
		w = f.witness("mac-1", "one", "two")
	})
	g.advance(noon.Add(time.Hour))
	g.witnessed("mac-1", "C07AAAAA0001", w)
	assert.ErrorContains(t, g.clearQuarantine("mac-1"), "the Mac serves instance acme/two", "it has a slot, but no grant")
	steps, err := g.restore("mac-1")
	require.NoError(t, err)
	require.Len(t, steps, 3, "%q", steps)
	assert.Contains(t, steps[0], "check the placeholder pod of instance acme/one")
	assert.Contains(t, steps[1], "grant the start of instance acme/two")
	assert.EqualValues(t, 2, g.node("mac-1").Status.RunningVMs)
	for _, name := range []string{"one", "two"} {
		i := g.getInstance("acme", name)
		assert.Equal(t, "Restored", meta.FindStatusCondition(i.Status.Conditions, "Scheduled").Reason)
	}

	// The garbage collector may remember that the lease was lost.
	collector := g.servers[0].Client(t, "system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts")
	err = collector.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "one", metav1.DeleteOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Nil(t, g.getInstance("acme", "one").DeletionTimestamp)
	g.deleteLease("acme", "build")
	assert.NoError(t, collector.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "one", metav1.DeleteOptions{}))
}
