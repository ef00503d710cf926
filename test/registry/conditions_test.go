package registry

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
	"macrack.io/macrack/pkg/rules"
)

// conditionsOf asserts that the conditions of an object have its generation, as kubectl wait
// requires, and returns their statuses.
func conditionsOf(t *testing.T, object metav1.Object, conditions []metav1.Condition, generation int64) map[string]string {
	t.Helper()
	assert.Equal(t, generation, object.GetGeneration(), "generation")
	statuses := map[string]string{}
	for _, c := range conditions {
		assert.Equal(t, generation, c.ObservedGeneration, "the generation of %s", c.Type)
		statuses[c.Type] = string(c.Status)
	}
	return statuses
}

func kstatus(t *testing.T, object runtime.Object) string {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(t, err)
	return conditionstest.Compute(t, &unstructured.Unstructured{Object: content})
}

func message(conditions []metav1.Condition, name string) string {
	return ptr.Deref(meta.FindStatusCondition(conditions, name), metav1.Condition{}).Message
}

func TestConditionsOfALease(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAA01")
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	patch := func(patch string) *rackv1alpha1.MacNodeLease {
		t.Helper()
		lease, err := leases.Patch(t.Context(), "build", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		return lease
	}
	type statuses = map[string]string

	created := newLease("acme", "build")
	created.Finalizers = []string{"example.com/kept"} // keeps it readable after its release
	lease, err := leases.Create(t.Context(), created, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, statuses{"Ready": "False", "Reconciling": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 1))
	assert.Equal(t, "InProgress", kstatus(t, lease), "from the first moment on")

	waits := lease.DeepCopy()
	meta.SetStatusCondition(&waits.Status.Conditions, metav1.Condition{Type: "Bound", Status: metav1.ConditionFalse, Reason: "EmptyClass", Message: "no Macs"})
	lease, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), waits, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, statuses{"Bound": "False", "Ready": "False", "Stalled": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 1))
	assert.Equal(t, "Failed", kstatus(t, lease))
	lease = patch(`{"spec": {"prefetchImages": ["macos-26"]}}`)
	assert.Equal(t, statuses{"Bound": "False", "Ready": "False", "Stalled": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 2))

	require.NoError(t, f.bind("acme", "build", "mac-1"))
	lease = f.getLease("acme", "build")
	ready := statuses{"Bound": "True", "MacReady": "True", "Ready": "True"}
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 2))
	assert.Equal(t, "Current", kstatus(t, lease))
	assert.Equal(t, "Mac C07AAA01 is leased until 2026-03-02T12:00:00Z at least", message(lease.Status.Conditions, "Bound"))

	lease = patch(`{"spec": {"minimumDuration": "48h"}}`)
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 3), "in the answer to the change itself")
	for _, name := range []string{"Bound", "Ready"} {
		assert.Equal(t, "Mac C07AAA01 is leased until 2026-03-03T12:00:00Z at least", message(lease.Status.Conditions, name))
	}
	lease = patch(`{"spec": {"prefetchImages": null, "expireAfter": "72h"}}`)
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 4))
	lease = patch(`{"metadata": {"annotations": {"a": "b"}}}`)
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 4), "metadata do not change the generation")
	before := lease.ResourceVersion
	assert.Equal(t, before, patch(`{"metadata": {"annotations": {"a": "b"}}}`).ResourceVersion, "nothing to write")

	// A late controller does not know yet that the lease was bound.
	late := waits.DeepCopy()
	late.ResourceVersion, late.Status.Phase, late.Status.BoundAt, late.Status.EarliestReleaseAt = "", lease.Status.Phase, lease.Status.BoundAt, lease.Status.EarliestReleaseAt
	lease, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), late, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, statuses{"Bound": "True", "Ready": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 4))

	meta.SetStatusCondition(&lease.Status.Conditions, metav1.Condition{Type: "MacReady", Status: metav1.ConditionFalse, Reason: "Offline", Message: "away"})
	lease, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, statuses{"Bound": "True", "MacReady": "False", "Ready": "False", "Reconciling": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 4))
	assert.Equal(t, "InProgress", kstatus(t, lease))
	meta.SetStatusCondition(&lease.Status.Conditions, metav1.Condition{Type: "MacReady", Status: metav1.ConditionTrue, Reason: "Ready"})
	_, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)

	f.deleteLease("acme", "build")
	lease = f.getLease("acme", "build")
	require.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase)
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 5), "a deletion counts as a generation")
	assert.Equal(t, "Terminating", kstatus(t, lease))
	lease = patch(`{"spec": {"minimumDuration": "72h"}}`)
	assert.Equal(t, ready, conditionsOf(t, lease, lease.Status.Conditions, 6))
	assert.Contains(t, message(lease.Status.Conditions, "Bound"), "is released at 2026-03-04T12:00:00Z")

	f.setTime(noon.Add(72 * time.Hour))
	lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
	lease, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, statuses{"Bound": "True", "MacReady": "True", "Ready": "False", "Reconciling": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 6))
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", rules.TaintUnleased+":NoSchedule"))
	lease = f.getLease("acme", "build")
	assert.Equal(t, statuses{"Bound": "False", "Ready": "False", "Released": "True"}, conditionsOf(t, lease, lease.Status.Conditions, 6))
}

func TestConditionsOfAMac(t *testing.T) {
	f := newFleet(t, 1)
	nodes := f.admin.RackV1alpha1().MacNodes()
	node, err := nodes.Create(t.Context(), &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C07AAA01", ClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	type statuses = map[string]string
	assert.Equal(t, statuses{"Ready": "Unknown"}, conditionsOf(t, node, node.Status.Conditions, 1))
	assert.Equal(t, "InProgress", kstatus(t, node), "no agent has reported")

	node = f.report("mac-1", func(status *rackv1alpha1.MacNodeStatus) {
		status.BootID = "boot-1"
		status.Hardware = &rackv1alpha1.MacNodeHardware{SerialNumber: "C07AAA01"}
		for _, name := range []string{"SlotsHealthy", "StorageHealthy", "Scrubbed"} {
			meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "Fine"})
		}
	})
	meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Heartbeat"})
	node, err = f.controllers.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	all := statuses{"Ready": "True", "SlotsHealthy": "True", "StorageHealthy": "True", "Scrubbed": "True"}
	assert.Equal(t, all, conditionsOf(t, node, node.Status.Conditions, 1))
	assert.Equal(t, "Current", kstatus(t, node))

	for i, patch := range []string{`{"spec": {"location": {"rack": "7"}}}`, `{"spec": {"maintenance": true}}`} {
		node, err = nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		assert.Equal(t, all, conditionsOf(t, node, node.Status.Conditions, int64(i+2)))
	}
	node, err = nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	assert.Equal(t, all, conditionsOf(t, node, node.Status.Conditions, 3))

	node = f.report("mac-1", func(status *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: "SlotsHealthy", Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "stuck"})
	})
	assert.Equal(t, statuses{"Ready": "True", "SlotsHealthy": "False", "StorageHealthy": "True", "Scrubbed": "True", "Stalled": "True"}, conditionsOf(t, node, node.Status.Conditions, 3))
	assert.Equal(t, "Failed", kstatus(t, node))
	node, err = nodes.Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"status": {"quarantine": null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, statuses{"Ready": "True", "SlotsHealthy": "Unknown", "StorageHealthy": "True", "Scrubbed": "True"}, conditionsOf(t, node, node.Status.Conditions, 3))
	assert.Equal(t, "Current", kstatus(t, node))
}

func TestConditionsOfAnInstance(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAA01")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
	type statuses = map[string]string
	condition := func(name string, status metav1.ConditionStatus, reason string) func(*instancev1alpha1.MacOSInstanceStatus) {
		return func(s *instancev1alpha1.MacOSInstanceStatus) {
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: name, Status: status, Reason: reason, Message: "because"})
		}
	}
	check := func(want statuses, generation int64, status string) {
		t.Helper()
		i := f.getInstance("acme", "vm")
		want["MacReady"] = cmp.Or(want["MacReady"], "True")
		assert.Equal(t, want, conditionsOf(t, i, i.Status.Conditions, generation))
		assert.Equal(t, status, kstatus(t, i))
	}
	agent := f.agent("mac-1")
	check(statuses{"Ready": "False", "Reconciling": "True"}, 1, "InProgress")

	require.NoError(t, f.write(agent, "acme", "vm", func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstancePulling
		condition("ImageReady", metav1.ConditionFalse, instancev1alpha1.ReasonImageNotFound)(s)
	}))
	check(statuses{"ImageReady": "False", "Ready": "False", "Stalled": "True"}, 1, "Failed")
	require.NoError(t, f.write(agent, "acme", "vm", condition("ImageReady", metav1.ConditionTrue, "Cached")))
	check(statuses{"ImageReady": "True", "Ready": "False", "Reconciling": "True"}, 1, "InProgress")

	f.start("mac-1", "acme", "vm", 1)
	require.NoError(t, f.write(agent, "acme", "vm", condition("GuestReady", metav1.ConditionFalse, "GuestBoots")))
	check(statuses{"ImageReady": "True", "GuestReady": "False", "Ready": "False", "Reconciling": "True"}, 1, "InProgress")
	require.NoError(t, f.write(agent, "acme", "vm", condition("GuestReady", metav1.ConditionTrue, "GuestAgentAnswers")))
	check(statuses{"ImageReady": "True", "GuestReady": "True", "Ready": "True"}, 1, "Current")

	// The Mac goes offline, and comes back after the tenant has deleted the instance.
	require.NoError(t, f.write(f.controllers, "acme", "vm", condition("MacReady", metav1.ConditionFalse, rackv1alpha1.ReasonMacOffline)))
	check(statuses{"ImageReady": "True", "GuestReady": "True", "MacReady": "False", "Ready": "Unknown", "Reconciling": "True"}, 1, "InProgress")
	require.NoError(t, f.acme.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	check(statuses{"ImageReady": "True", "GuestReady": "True", "MacReady": "False", "Ready": "False", "Reconciling": "True"}, 2, "Terminating")
	assert.Equal(t, "stop requested by acme (Deleted); it stops when its Mac is online again: because", f.getInstance("acme", "vm").Status.Message)
	require.NoError(t, f.write(f.controllers, "acme", "vm", condition("MacReady", metav1.ConditionTrue, "Ready")))
	check(statuses{"ImageReady": "True", "GuestReady": "True", "Ready": "False", "Reconciling": "True"}, 2, "Terminating")
	assert.Equal(t, "stop requested by acme (Deleted)", f.getInstance("acme", "vm").Status.Message)
	require.NoError(t, f.write(f.controllers, "acme", "vm", condition("MacReady", metav1.ConditionFalse, rackv1alpha1.ReasonMacOffline)))
	assert.Equal(t, "stop requested by acme (Deleted); it stops when its Mac is online again: because", f.getInstance("acme", "vm").Status.Message)

	f.stopped("mac-1", "acme", "vm")
	check(statuses{"ImageReady": "True", "GuestReady": "True", "MacReady": "False", "Ready": "False", "Stalled": "True"}, 2, "Terminating")
}

// The catalogue and the configuration are settled as soon as they are stored.
func TestKStatusOfKindsWithoutConditions(t *testing.T) {
	f := newFleet(t, 1)
	class, err := f.admin.RackV1alpha1().MacNodeClasses().Get(t.Context(), "base", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Current", kstatus(t, class))
	size, err := f.admin.InstanceV1alpha1().InstanceClasses().Get(t.Context(), "small", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Current", kstatus(t, size))

	class.Spec.SKU = "mac-mini-m4"
	updated, err := f.admin.RackV1alpha1().MacNodeClasses().Update(t.Context(), class, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, updated.Generation)
	updated.Status.Total = 3
	updated, err = f.admin.RackV1alpha1().MacNodeClasses().UpdateStatus(t.Context(), updated, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, updated.Generation, "a status does not change the generation")
	assert.Equal(t, "Current", kstatus(t, updated))
}
