package registry

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestFloor(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	f.start("mac-1", "acme", "first", 1)

	f.clock.SetTime(noon.Add(3 * time.Hour))
	f.deleteLease("acme", "build")
	lease := f.getLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase)
	assert.True(t, lease.Status.HeldAt.Time.Equal(noon.Add(3*time.Hour)))
	held := f.records("acme")[2]
	assert.Equal(t, rackv1alpha1.LeaseHeld, held.Type)
	assert.Equal(t, "acme", held.Actor.Username)
	assert.Equal(t, 21*time.Hour, held.Details.Remaining.Duration)

	f.deleteLease("acme", "build") // a second deletion changes nothing
	assert.Equal(t, lease.Status, f.getLease("acme", "build").Status)

	f.clock.SetTime(noon.Add(10 * time.Hour))
	require.NoError(t, f.create(t.Context(), newInstance("acme", "second", "build")), "the tenant may still use a Held lease")

	phase := func(phase rackv1alpha1.MacNodeLeasePhase) error {
		lease := f.getLease("acme", "build")
		lease.Status.Phase = phase
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		return err
	}
	err := phase(rackv1alpha1.MacNodeLeaseReleasing)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "in 14h")

	f.clock.SetTime(noon.Add(24 * time.Hour))
	err = f.create(t.Context(), newInstance("acme", "third", "build"))
	assert.True(t, apierrors.IsForbidden(err), "the registry must refuse it although the controller is late: %v", err)
	require.NoError(t, phase(rackv1alpha1.MacNodeLeaseReleasing))
	node := f.node("mac-1")
	assert.Equal(t, rackv1alpha1.MacNodeReleasing, node.Status.Phase)
	assert.NotNil(t, node.Status.ReleasingSince)

	assert.ErrorContains(t, f.release("acme", "build", unleased), "waiting for instances to stop: first, second")
	f.stopped("mac-1", "acme", "first")
	assert.ErrorContains(t, f.release("acme", "build", unleased), "waiting for instances to stop: second")
	_, err = f.controllers.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "second", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, f.release("acme", "build", unleased), "to report a complete scrub")
	f.scrub("mac-1")
	assert.ErrorContains(t, f.release("acme", "build"), "waiting for Node mac-1 to be tainted macrack.io/unleased")
	assert.ErrorContains(t, f.release("acme", "build", unleased, "macrack.io/tenant=acme:NoSchedule"), "waiting for Node mac-1 to be tainted")
	require.NoError(t, f.release("acme", "build", unleased))

	_, err = f.admin.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "build", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	node = f.node("mac-1")
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, node.Status.Phase)
	assert.Nil(t, node.Status.LeaseRef)
	assert.Equal(t, []rackv1alpha1.AuditRecordType{
		rackv1alpha1.LeaseBound, rackv1alpha1.InstanceStarted, rackv1alpha1.LeaseHeld, rackv1alpha1.FloorTamperRejected,
		rackv1alpha1.InstanceRejected, rackv1alpha1.InstanceStopped, rackv1alpha1.LeaseReleased,
	}, typesOf(f.records("acme")))

	report, err := f.admin.RackV1alpha1().ComplianceReports().Get(t.Context(), "30d", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, report.Status.Verdict, "%+v", report.Status)
	assert.EqualValues(t, 1, report.Status.MaxVMs)
}

// No user can move a floor, by any write through any endpoint.
func TestFloorTampering(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	lease := f.lease("acme", "build", "mac-1")
	patch := func(kind types.PatchType, data string, subresources ...string) error {
		_, err := f.admin.RackV1alpha1().MacNodeLeases("acme").Patch(t.Context(), "build", kind, []byte(data), metav1.PatchOptions{}, subresources...)
		return err
	}
	for name, try := range map[string]func() error{
		"the floor, backwards": func() error {
			return patch(types.MergePatchType, `{"status":{"earliestReleaseAt":"2026-03-01T12:00:00Z"}}`, "status")
		},
		"the floor, removed": func() error { return patch(types.MergePatchType, `{"status":{"earliestReleaseAt":null}}`, "status") },
		"the floor, by a JSON patch": func() error {
			return patch(types.JSONPatchType, `[{"op":"remove","path":"/status/earliestReleaseAt"}]`, "status")
		},
		"the binding, backwards": func() error {
			return patch(types.MergePatchType, `{"status":{"boundAt":"2026-02-01T12:00:00Z"}}`, "status")
		},
		"the binding, removed": func() error { return patch(types.MergePatchType, `{"status":{"boundAt":null}}`, "status") },
		"the whole status": func() error {
			return patch(types.JSONPatchType, `[{"op":"replace","path":"/status","value":{}}]`, "status")
		},
		"the finalizer":        func() error { return patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`) },
		"the minimum duration": func() error { return patch(types.MergePatchType, `{"spec":{"minimumDuration":"23h59m59s"}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			before := len(f.records("acme"))
			err := try()
			require.Error(t, err)
			assert.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
			after := f.getLease("acme", "build")
			assert.Equal(t, lease.ResourceVersion, after.ResourceVersion, "nothing has changed")
			records := f.records("acme")
			require.Greater(t, len(records), before, "it must be recorded: %v", err)
			assert.Equal(t, rackv1alpha1.FloorTamperRejected, records[len(records)-1].Type)
			f.clock.Step(2 * time.Minute) // identical rejections within a minute fold
		})
	}
	t.Run("fields that writers of the status may not change stay", func(t *testing.T) {
		require.NoError(t, patch(types.MergePatchType, `{"status":{"nodeName":"mac-9","serialNumber":"X","instances":[{"name":"ghost","uid":"1"}],"heldAt":"2026-03-01T12:00:00Z"}}`, "status"))
		assert.Equal(t, lease.Status, f.getLease("acme", "build").Status)
	})
	t.Run("a longer minimum moves the floor forward", func(t *testing.T) {
		require.NoError(t, patch(types.MergePatchType, `{"spec":{"minimumDuration":"48h"}}`))
		after := f.getLease("acme", "build")
		assert.Equal(t, 48*time.Hour, after.Status.EarliestReleaseAt.Sub(after.Status.BoundAt.Time))
		assert.True(t, f.node("mac-1").Status.EarliestReleaseAt.Equal(after.Status.EarliestReleaseAt))
		assert.Error(t, patch(types.MergePatchType, `{"spec":{"minimumDuration":"47h"}}`), "it must not move back")
		assert.Error(t, patch(types.MergePatchType, `{"spec":{"minimumDuration":null}}`), "it must not move back to the default")
	})
	t.Run("a clock that runs backwards changes nothing", func(t *testing.T) {
		f.clock.SetTime(noon.Add(-100 * time.Hour))
		f.deleteLease("acme", "build")
		after := f.getLease("acme", "build")
		assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, after.Status.Phase)
		assert.False(t, after.Status.HeldAt.Time.Before(noon), "time does not run backwards on a chassis: %s", after.Status.HeldAt)
	})
}

// A floor that was stored too short by a mistake is restored by the next write.
func TestFloorRestored(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	lease := f.lease("acme", "build", "mac-1")
	// The wrong value is written past the registry.
	key := "/registry/rack.macrack.io/macnodeleases/acme/build"
	resp, err := f.etcd.Client.Get(t.Context(), key)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	stored := &rackv1alpha1.MacNodeLease{}
	raw := resp.Kvs[0].Value
	require.Equal(t, "k8s\x00", string(raw[:4]), "objects are stored in protobuf")
	decode(t, raw, stored)
	stored.Status.EarliestReleaseAt = &metav1.Time{Time: noon.Add(time.Hour)}
	_, err = f.etcd.Client.Put(t.Context(), key, string(encode(t, stored)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return f.getLease("acme", "build").Status.EarliestReleaseAt.Time.Equal(noon.Add(time.Hour))
	}, 2*time.Minute, 10*time.Millisecond)

	label, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"team": "ci"}}})
	require.NoError(t, err)
	_, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Patch(t.Context(), "build", types.MergePatchType, label, metav1.PatchOptions{})
	require.NoError(t, err)
	assert.Equal(t, lease.Status.EarliestReleaseAt.Time.UTC(), f.getLease("acme", "build").Status.EarliestReleaseAt.Time.UTC())
}

// Just after a floor, the readings of the other replicas are from before it. An early request for a
// release is not tampering then.
func TestReleaseRightAfterTheFloor(t *testing.T) {
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.deleteLease("acme", "build")
	f.setTime(noon.Add(24*time.Hour - 2*time.Second))
	f.clock.Step(2*time.Second + 10*time.Millisecond)
	require.Eventually(t, func() bool {
		lease := f.getLease("acme", "build")
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		if err != nil {
			assert.True(t, apierrors.IsConflict(err), "%v", err)
			f.clock.Step(time.Second)
		}
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond)
	for _, record := range f.records("acme") {
		assert.NotEqual(t, rackv1alpha1.FloorTamperRejected, record.Type)
	}
}
