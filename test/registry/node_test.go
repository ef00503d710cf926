package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestSerialNumberIsUnique(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	nodes := f.admin.RackV1alpha1().MacNodes()
	twin := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-2"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07AAAAA0001", ClassName: "base"}}
	_, err := nodes.Create(t.Context(), twin, metav1.CreateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	assert.ErrorContains(t, err, "already in use by MacNode mac-1")
	_, err = nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"spec":{"serialNumber":"C07AAAAA0002"}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	require.NoError(t, nodes.Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	_, err = nodes.Create(t.Context(), twin, metav1.CreateOptions{})
	assert.NoError(t, err, "the serial number is free with its owner")
}

func TestLeasedMacStays(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	nodes := f.admin.RackV1alpha1().MacNodes()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground} {
		err := nodes.Delete(t.Context(), "mac-1", metav1.DeleteOptions{PropagationPolicy: &policy})
		assert.True(t, apierrors.IsConflict(err), "%s: %v", policy, err)
		assert.Nil(t, f.node("mac-1").DeletionTimestamp, "its deletion has not even begun")
	}
	_, err := nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"spec":{"className":"pro"}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	before := f.node("mac-1")
	_, err = nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"status":{"phase":"Available","leaseRef":null,"earliestReleaseAt":null,"runningVMs":0}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, before.Status, f.node("mac-1").Status, "clients must not write the registry's fields")
}

func TestQuarantine(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	healthy := func(status metav1.ConditionStatus, reason, bootID string) *rackv1alpha1.MacNode {
		return f.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) {
			s.BootID = bootID
			s.Quarantine = nil // an agent cannot end it by omission
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: status, Reason: reason, Message: "the kernel refuses"})
		})
	}
	node := healthy(metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck, "boot-1")
	assert.Equal(t, rackv1alpha1.MacNodeQuarantined, node.Status.Phase)
	require.NotNil(t, node.Status.Quarantine)
	assert.Equal(t, rackv1alpha1.ReasonKernelQuotaStuck, node.Status.Quarantine.Reason)

	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, f.bind("acme", "build", "mac-1"), "is Quarantined")

	node = healthy(metav1.ConditionTrue, "Healthy", "boot-1")
	assert.Equal(t, rackv1alpha1.MacNodeQuarantined, node.Status.Phase, "the same boot proves nothing")
	node = healthy(metav1.ConditionTrue, "Healthy", "boot-2")
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, node.Status.Phase, "a reboot does")

	healthy(metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach, "boot-2")
	_, err = f.admin.RackV1alpha1().MacNodes().Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"status":{"quarantine":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, f.node("mac-1").Status.Phase, "an administrator may end a quarantine")

	var kinds []rackv1alpha1.AuditRecordType
	for _, r := range f.records("macrack-system") {
		kinds = append(kinds, r.Type)
		assert.Equal(t, "mac-1", r.Chassis.NodeName)
	}
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.NodeQuarantined, rackv1alpha1.NodeRecovered, rackv1alpha1.NodeQuarantined, rackv1alpha1.NodeRecovered}, kinds)
}

func TestOffline(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	ready := func(status metav1.ConditionStatus) {
		node := f.node("mac-1")
		meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeReady, Status: status, Reason: "Heartbeat"})
		_, err := f.controllers.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	ready(metav1.ConditionFalse)
	assert.Equal(t, rackv1alpha1.MacNodeOffline, f.node("mac-1").Status.Phase)
	ready(metav1.ConditionTrue)
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, f.node("mac-1").Status.Phase)
	f.lease("acme", "build", "mac-1")
	ready(metav1.ConditionFalse)
	node := f.node("mac-1")
	assert.Equal(t, rackv1alpha1.MacNodeOffline, node.Status.Phase)
	assert.NotNil(t, node.Status.LeaseRef, "silence does not end a lease")
}

func TestRecordsCannotBeChanged(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	record := f.records("acme")[0]
	rc := f.admin.RackV1alpha1().RESTClient()
	for name, do := range map[string]func() error{
		"delete": func() error {
			return rc.Delete().Namespace("acme").Resource("auditrecords").Name(record.Name).Do(t.Context()).Error()
		},
		"delete all": func() error {
			return rc.Delete().Namespace("acme").Resource("auditrecords").Do(t.Context()).Error()
		},
		"update": func() error {
			return rc.Put().Namespace("acme").Resource("auditrecords").Name(record.Name).Body(&record).Do(t.Context()).Error()
		},
		"patch": func() error {
			return rc.Patch(types.MergePatchType).Namespace("acme").Resource("auditrecords").Name(record.Name).Body([]byte(`{"tenant":"globex"}`)).Do(t.Context()).Error()
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := do()
			assert.True(t, apierrors.IsMethodNotSupported(err), "%v", err)
			assert.Equal(t, record, f.records("acme")[0])
		})
	}
}

// Identical refusals within a minute leave a few records, however many they are.
func TestRefusalsFold(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	rejected := func() (records int, total int64) {
		for _, r := range f.records("acme") {
			if r.Type == rackv1alpha1.InstanceRejected {
				records++
				total += max(r.Details.Count, 1)
			}
		}
		return records, total
	}
	for minute := range 2 {
		for range 50 {
			require.Error(t, f.create(t.Context(), newInstance("acme", "bad", "none")))
		}
		f.clock.Step(time.Minute)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			_, total := rejected()
			assert.EqualValues(c, 50*(minute+1), total)
		}, 2*time.Minute, 20*time.Millisecond)
	}
	records, _ := rejected()
	assert.Equal(t, 4, records, "the first of each minute, and the count of the others")
}

// A Mac that is being removed from the fleet is not leased, and its quarantine ends with it,
// recorded.
func TestMacThatLeaves(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	nodes := f.admin.RackV1alpha1().MacNodes()
	foreground := metav1.DeletePropagationForeground
	require.NoError(t, nodes.Delete(t.Context(), "mac-1", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, f.bind("acme", "build", "mac-1"), "removed from the fleet")

	f.mac("mac-2", "C07AAAAA0002")
	f.report("mac-2", func(s *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonKernelQuotaStuck})
	})
	require.NoError(t, nodes.Delete(t.Context(), "mac-2", metav1.DeleteOptions{}))
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.NodeQuarantined, rackv1alpha1.NodeRecovered}, typesOf(f.records("macrack-system")))
}

// A scrub report counts only if it is made after the end of the lease.
func TestScrubbedTooEarly(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	lease := f.lease("acme", "build", "mac-1")
	node := f.node("mac-1")
	node.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: lease.UID, FinishedAt: metav1.NewTime(f.clock.Now())}
	_, err := f.agent("mac-1").RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Nil(t, f.node("mac-1").Status.Scrub)
}
