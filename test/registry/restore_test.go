package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// kubectl replace and helm write a tenant's whole manifest again; other tools patch their own list
// of finalizers. The lease keeps its floor in both cases, without a record. Only a patch that
// removes the finalizer is recorded.
func TestWholeLeases(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	floor := f.getLease("acme", "build").Status.EarliestReleaseAt

	manifest := newLease("acme", "build")
	manifest.Labels = map[string]string{"a": "b"}
	replaced, err := leases.Update(t.Context(), manifest, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{rules.FinalizerFloor}, replaced.Finalizers)
	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, replaced.Status.Phase)
	manifest.Finalizers = []string{"example.com/mine"}
	replaced, err = leases.Update(t.Context(), manifest, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/mine", rules.FinalizerFloor}, replaced.Finalizers)

	patch := func(body string) (*rackv1alpha1.MacNodeLease, error) {
		return leases.Patch(t.Context(), "build", types.MergePatchType, []byte(body), metav1.PatchOptions{})
	}
	patched, err := patch(`{"metadata":{"finalizers":["example.com/other"]}}`)
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/other", rules.FinalizerFloor}, patched.Finalizers, "as kubectl apply does")

	patched, err = patch(`{"spec":{"minimumDuration":"48h"}}`)
	require.NoError(t, err)
	_, err = patch(`{"spec":{"minimumDuration":"24h"}}`)
	assert.True(t, apierrors.IsInvalid(err), "an older manifest: %v", err)
	assert.ErrorContains(t, err, "can only be lengthened")
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound, rackv1alpha1.FloorLengthened}, typesOf(f.records("acme")))
	assert.True(t, patched.Status.EarliestReleaseAt.Time.Equal(floor.Add(24*time.Hour)))

	for _, body := range []string{`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":[]}}`} {
		_, err = patch(body)
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	}
	_, err = patch(`{"spec":{"minimumDuration":"1h"}}`)
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	var reasons []string
	for _, record := range f.records("acme")[2:] {
		assert.Equal(t, rackv1alpha1.FloorTamperRejected, record.Type)
		reasons = append(reasons, record.Details.Reason)
	}
	assert.ElementsMatch(t, []string{"FloorFinalizerRemoved", "FloorMoved"}, reasons)
}

// An export is created again under a new UID, and the server sets all of its own fields.
func TestRestore(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
	f.start("mac-1", "acme", "vm", 1)
	lease, vm, node := f.getLease("acme", "build"), f.getInstance("acme", "vm"), f.node("mac-1")

	f.setTime(noon.Add(25 * time.Hour))
	f.deleteLease("acme", "build")
	f.stopped("mac-1", "acme", "vm")
	stopped := f.getInstance("acme", "vm")
	stopped.Finalizers = nil
	_, err := f.controllers.InstanceV1alpha1().MacOSInstances("acme").Update(t.Context(), stopped, metav1.UpdateOptions{})
	require.NoError(t, err, "the controllers release an ended instance")
	require.NoError(t, f.admin.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", unleased))
	require.NoError(t, f.admin.RackV1alpha1().MacNodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	before := len(f.records("acme"))

	restoredNode, err := f.admin.RackV1alpha1().MacNodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, node.UID, restoredNode.UID)
	assert.Equal(t, rackv1alpha1.MacNodePending, restoredNode.Status.Phase)
	assert.Nil(t, restoredNode.Status.LeaseRef)
	restored, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), lease, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, lease.UID, restored.UID)
	assert.Empty(t, restored.Finalizers)
	assert.Equal(t, rackv1alpha1.MacNodeLeasePending, restored.Status.Phase)
	assert.Empty(t, restored.Status.NodeName)

	f.mac("mac-2", "C07AAAAA0002")
	require.NoError(t, f.bind("acme", "build", "mac-2"))
	require.NoError(t, f.create(t.Context(), vm))
	again := f.getInstance("acme", "vm")
	assert.NotEqual(t, vm.UID, again.UID)
	assert.Equal(t, []string{rules.FinalizerVM}, again.Finalizers)
	assert.Equal(t, restored.UID, again.OwnerReferences[0].UID)
	assert.Len(t, again.OwnerReferences, 1)
	assert.Empty(t, again.Status.MachineID)
	assert.Equal(t, "mac-2", again.Status.NodeName)
	assert.Len(t, f.records("acme"), before+1, "only the binding adds a record")
	require.Equal(t, rackv1alpha1.ComplianceCompliant, f.compliance("7d").Verdict)

	// manifest drops the fields that the server added.
	manifest := newInstance("acme", "vm", "build")
	manifest.Labels = map[string]string{"a": "b"}
	replaced, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Update(t.Context(), manifest, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{rules.FinalizerVM}, replaced.Finalizers)
	assert.Equal(t, again.OwnerReferences, replaced.OwnerReferences)
	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Patch(t.Context(), "vm", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
}
