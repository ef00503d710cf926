package registry

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	rackapply "macrack.io/macrack/pkg/generated/applyconfiguration/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/registrytest"
)

const unleased = "macrack.io/unleased:NoSchedule"

func TestBinding(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.clock.SetTime(noon.Add(400 * time.Millisecond))
	lease := f.lease("acme", "build", "mac-1")

	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, lease.Status.Phase)
	assert.True(t, lease.Status.BoundAt.Time.Equal(noon.Add(time.Second)), "a time is rounded up: %s", lease.Status.BoundAt)
	assert.True(t, lease.Status.EarliestReleaseAt.Time.Equal(noon.Add(24*time.Hour+time.Second)))
	assert.Equal(t, []string{rules.FinalizerFloor}, lease.Finalizers)
	assert.Equal(t, "C07AAAAA0001", lease.Status.SerialNumber)
	assert.True(t, meta.IsStatusConditionTrue(lease.Status.Conditions, "Bound"))

	node := f.node("mac-1")
	assert.Equal(t, rackv1alpha1.MacNodeLeased, node.Status.Phase)
	assert.Equal(t, &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build", UID: lease.UID}, node.Status.LeaseRef)
	assert.True(t, node.Status.EarliestReleaseAt.Equal(lease.Status.EarliestReleaseAt))

	records := f.records("acme")
	require.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound}, typesOf(records))
	assert.Equal(t, "system:serviceaccount:macrack-system:macrack-controllers", records[0].Actor.Username)
	assert.NotEmpty(t, records[0].RequestID)
	assert.EqualValues(t, 1, records[0].Sequence)

	t.Run("the Mac gets the list of images to prefetch", func(t *testing.T) {
		f.mac("mac-3", "C07AAAAA0003")
		lease := newLease("acme", "prefetch")
		lease.Spec.PrefetchImages = []string{"macos-26"}
		_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), lease, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, f.bind("acme", "prefetch", "mac-3"))
		assert.Equal(t, []string{"macos-26"}, f.node("mac-3").Status.PrefetchImages)
		f.report("mac-3", func(s *rackv1alpha1.MacNodeStatus) { s.PrefetchImages = nil })
		assert.Equal(t, []string{"macos-26"}, f.node("mac-3").Status.PrefetchImages, "the agent must not write this field")
		lease = f.getLease(lease.Namespace, lease.Name)
		lease.Spec.PrefetchImages = []string{"macos-27"}
		_, err = f.acme.RackV1alpha1().MacNodeLeases(lease.Namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, []string{"macos-27"}, f.node("mac-3").Status.PrefetchImages, "a change reaches the Mac of a bound lease")
	})
	t.Run("a Mac has one lease only", func(t *testing.T) {
		_, err := f.globex.RackV1alpha1().MacNodeLeases("globex").Create(t.Context(), newLease("globex", "late"), metav1.CreateOptions{})
		require.NoError(t, err)
		err = f.bind("globex", "late", "mac-1")
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.ErrorContains(t, err, "rule 2 (one tenant per Mac)")
	})
	t.Run("a binding is for the lease of its UID", func(t *testing.T) {
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("globex").Bind(t.Context(), "late",
			&rackv1alpha1.MacNodeLeaseBinding{ObjectMeta: metav1.ObjectMeta{UID: "of-another"}, NodeName: "mac-1"}, metav1.CreateOptions{})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.ErrorContains(t, err, "another object has its name now")
	})
	t.Run("a lease has one Mac only", func(t *testing.T) {
		f.mac("mac-2", "C07AAAAA0002")
		assert.True(t, apierrors.IsConflict(f.bind("acme", "build", "mac-2")))
		assert.Nil(t, f.node("mac-2").Status.LeaseRef)
	})
	t.Run("a dry run binds nothing, and is refused like the real request", func(t *testing.T) {
		leases := f.controllers.RackV1alpha1().MacNodeLeases("globex")
		before := f.etcd.Revision(t)
		_, err := leases.Bind(t.Context(), "late", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-1"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		_, err = leases.Bind(t.Context(), "late", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-2"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.NoError(t, err)
		assert.Equal(t, before, f.etcd.Revision(t))
	})
	t.Run("another tenant's serial number cannot be requested", func(t *testing.T) {
		lease := newLease("globex", "that-one")
		lease.Spec.SerialNumber = "C07AAAAA0001"
		_, err := f.globex.RackV1alpha1().MacNodeLeases("globex").Create(t.Context(), lease, metav1.CreateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.NotContains(t, err.Error(), "acme", "the message must not name the Mac's tenant")
		assert.Len(t, f.records("globex"), 0)
		records := f.records("macrack-system") // neither tenant reads records about both
		last := records[len(records)-1]
		assert.Equal(t, rackv1alpha1.CrossTenantRejected, last.Type)
		assert.Equal(t, "acme", last.Tenant)
		assert.Equal(t, "globex", last.Details.SourceNamespace)
		assert.Equal(t, "globex", last.Actor.Username)
	})
	t.Run("only an available Mac of the class", func(t *testing.T) {
		node := f.node("mac-2")
		node.Spec.Maintenance = true
		node, err := f.admin.RackV1alpha1().MacNodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, rackv1alpha1.MacNodeMaintenance, node.Status.Phase)
		assert.ErrorContains(t, f.bind("globex", "late", "mac-2"), "is Maintenance")
	})
}

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

	assert.ErrorContains(t, f.release("acme", "build", unleased), "waits for instances to stop: first, second")
	f.stopped("mac-1", "acme", "first")
	assert.ErrorContains(t, f.release("acme", "build", unleased), "waits for instances to stop: second")
	_, err = f.controllers.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "second", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, f.release("acme", "build", unleased), "nothing of the tenant is left")
	f.scrub("mac-1")
	assert.ErrorContains(t, f.release("acme", "build"), "waits for the Node mac-1 to be tainted macrack.io/unleased")
	assert.ErrorContains(t, f.release("acme", "build", unleased, "macrack.io/tenant=acme:NoSchedule"), "waits for the Node mac-1 to be tainted")
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

func TestDeleteUnbound(t *testing.T) {
	f := newFleet(t, 1)
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	f.deleteLease("acme", "build")
	_, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "build", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "a lease without a Mac is deleted at once")
}

func TestDeleteAfterTheFloor(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.clock.SetTime(noon.Add(24 * time.Hour))
	f.deleteLease("acme", "build")
	lease := f.getLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseReleasing, lease.Status.Phase)
	assert.Nil(t, lease.Status.HeldAt)
	assert.Equal(t, rackv1alpha1.MacNodeReleasing, f.node("mac-1").Status.Phase)
}

// A lease deleted before its floor becomes Held, however it is deleted.
func TestDeletesThatHold(t *testing.T) {
	zero := int64(0)
	policy := func(p metav1.DeletionPropagation) metav1.DeleteOptions {
		return metav1.DeleteOptions{PropagationPolicy: &p}
	}
	for name, options := range map[string]metav1.DeleteOptions{
		"plainly":    {},
		"by force":   {GracePeriodSeconds: &zero},
		"orphan":     policy(metav1.DeletePropagationOrphan),
		"foreground": policy(metav1.DeletePropagationForeground),
		"background": policy(metav1.DeletePropagationBackground),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1)
			f.mac("mac-1", "C07AAAAA0001")
			f.lease("acme", "build", "mac-1")
			require.NoError(t, f.acme.RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), "build", options))
			lease := f.getLease("acme", "build")
			assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase)
			assert.Contains(t, lease.Finalizers, rules.FinalizerFloor)
			assert.NotContains(t, lease.Finalizers, metav1.FinalizerOrphanDependents, "an instance must not outlive its lease")
			assert.NotNil(t, f.node("mac-1").Status.LeaseRef)
		})
	}
	t.Run("in a collection", func(t *testing.T) {
		f := newFleet(t, 1)
		f.mac("mac-1", "C07AAAAA0001")
		f.mac("mac-2", "C07AAAAA0002")
		f.lease("acme", "one", "mac-1")
		f.lease("acme", "two", "mac-2")
		require.NoError(t, f.acme.RackV1alpha1().MacNodeLeases("acme").DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}))
		for _, name := range []string{"one", "two"} {
			assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", name).Status.Phase)
		}
	})
}

// Leases that are bound during a tenant's deletion of all leases become Held too, without a second
// request.
func TestDeletesAllWhileTheyAreBound(t *testing.T) {
	const rounds, macs = 24, 2
	f := newFleet(t, 2)
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	for round := range rounds {
		var names []string
		for n := range macs {
			name := fmt.Sprintf("%d-%d", round, n)
			f.mac("mac-"+name, fmt.Sprintf("C07AAAAA%02d%02d", round, n))
			_, err := leases.Create(t.Context(), newLease("acme", "lease-"+name), metav1.CreateOptions{})
			require.NoError(t, err)
			names = append(names, name)
		}
		var binding sync.WaitGroup
		defer binding.Wait()
		for _, name := range names {
			binding.Go(func() {
				if err := f.bind("acme", "lease-"+name, "mac-"+name); err != nil {
					assert.True(t, apierrors.IsNotFound(err), "it has already been deleted: %v", err)
				}
			})
		}
		require.NoError(t, leases.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		binding.Wait()
		list, err := leases.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, lease := range list.Items {
			assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase, lease.Name)
		}
	}
}

// A lease that never had a Mac has no instances, so it is deleted like any object. A lease with a
// Mac stays until its instances have stopped, out of reach of the garbage collector.
func TestGarbageCollectorsFinalizers(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	for policy, finalizer := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
	} {
		_, err := leases.Create(t.Context(), newLease("acme", "pending"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, leases.Delete(t.Context(), "pending", metav1.DeleteOptions{PropagationPolicy: &policy}))
		pending := f.getLease("acme", "pending")
		assert.Equal(t, []string{finalizer}, pending.Finalizers, "the garbage collector finds it by this finalizer")
		pending.Finalizers = nil
		_, err = f.admin.RackV1alpha1().MacNodeLeases("acme").Update(t.Context(), pending, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = leases.Get(t.Context(), "pending", metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	foreground := metav1.DeletePropagationForeground
	f.lease("acme", "build", "mac-1")
	require.NoError(t, leases.Delete(t.Context(), "build", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	assert.Equal(t, []string{rules.FinalizerFloor}, f.getLease("acme", "build").Finalizers)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "late", "build")), "a Held lease takes instances")
}

// An update that names no class keeps the lease's class.
func TestClassIsKept(t *testing.T) {
	f := newFleet(t, 1)
	lease, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	lease.Spec.ClassName = ""
	lease, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Update(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "base", lease.Spec.ClassName)
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

// A tenant deletes leases while the controllers bind them: each is deleted at once or becomes Held.
func TestDeleteBindRace(t *testing.T) {
	const rounds = 60
	f := newFleet(t, 2)
	var group sync.WaitGroup
	for n := range rounds {
		name, node := fmt.Sprintf("lease-%d", n), fmt.Sprintf("mac-%d", n)
		f.mac(node, fmt.Sprintf("C07AAAAA%04d", n))
		_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", name), metav1.CreateOptions{})
		require.NoError(t, err)
		other := f.servers[1].Client(t, "controllers")
		group.Go(func() {
			_, err := other.RackV1alpha1().MacNodeLeases("acme").Bind(t.Context(), name, &rackv1alpha1.MacNodeLeaseBinding{NodeName: node}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				t.Errorf("bind %s: %v", name, err)
			}
		})
		group.Go(func() {
			if err := f.acme.RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete %s: %v", name, err)
			}
		})
		group.Wait()
	}
	leases, err := f.admin.RackV1alpha1().MacNodeLeases("acme").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, lease := range leases.Items {
		assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, lease.Status.Phase)
	}
	assert.NotContains(t, typesOf(f.records("acme")), rackv1alpha1.FloorTamperRejected)
}

// A lease without a class gets the default class, however it is created.
func TestDefaultClass(t *testing.T) {
	f := newFleet(t, 1)
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	unnamed := func(name string) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name}}
	}
	_, err := leases.Create(t.Context(), unnamed("none"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "there is no default: %v", err)

	_, err = f.admin.ConfigV1alpha1().RackConfigs().Create(t.Context(), &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: configv1alpha1.RackConfigSpec{DefaultClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var created *rackv1alpha1.MacNodeLease
	require.Eventually(t, func() bool {
		created, err = leases.Create(t.Context(), unnamed("created"), metav1.CreateOptions{})
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond, "%v", err)
	assert.Equal(t, "base", created.Spec.ClassName)
	applied, err := leases.Apply(t.Context(), rackapply.MacNodeLease("applied", "acme"), metav1.ApplyOptions{FieldManager: "test"})
	require.NoError(t, err)
	assert.Equal(t, "base", applied.Spec.ClassName)
}

// If the clocks of two replicas disagree, the floor passes by the slower one.
func TestSkewedClocks(t *testing.T) {
	f := newFleet(t, 1)
	fast := clocktesting.NewFakeClock(noon)
	ahead := registrytest.StartServer(t, f.etcd, fast)
	controllers := map[string]versioned.Interface{"ahead": ahead.Client(t, "controllers", "system:masters"), "right": f.controllers}
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	release := func(by string) error {
		lease := f.getLease("acme", "build")
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		_, err := controllers[by].RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		return err
	}
	move := func(to time.Time) {
		f.clock.SetTime(to)
		fast.SetTime(to.Add(time.Hour))
	}
	move(noon.Add(23*time.Hour + 30*time.Minute)) // on the fast replica the floor has passed
	require.NoError(t, ahead.Client(t, "tenant", "system:masters").RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), "build", metav1.DeleteOptions{}))
	require.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase, "on every replica")
	for range 5 {
		assert.True(t, apierrors.IsForbidden(release("ahead")), "the other replica's clock counts")
		assert.True(t, apierrors.IsForbidden(release("right")), "the fast replica's record does not move the slow clock")
	}
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase)

	move(noon.Add(24 * time.Hour))
	require.Eventually(t, func() bool {
		f.clock.Step(5 * time.Second)
		return release("ahead") == nil
	}, 2*time.Minute, 50*time.Millisecond, "both agree")
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

// The hold marks exactly the instances that it ends.
func TestHoldMarksInstances(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	stops := func() map[string]bool {
		marks := map[string]bool{}
		for _, slot := range f.getLease("acme", "build").Status.Instances {
			marks[slot.Name] = slot.Stop
		}
		return marks
	}
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	assert.Equal(t, map[string]bool{"one": false}, stops())
	f.deleteLease("acme", "build")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))
	assert.Equal(t, map[string]bool{"one": true, "two": false}, stops())
	f.deleteLease("acme", "build")
	assert.Equal(t, map[string]bool{"one": true, "two": false}, stops(), "a second deletion changes nothing")
}

// A slow replica must not begin a lease's day before it has begun for the others: it may be gone
// when the day ends.
func TestBindBySlowClock(t *testing.T) {
	f := newFleet(t, 1)
	clock := clocktesting.NewFakeClock(noon.Add(-time.Hour))
	slow := registrytest.StartServer(t, f.etcd, clock).Client(t, "controllers", "system:masters")
	f.clock.SetTime(noon.Add(time.Minute))
	require.Eventually(t, func() bool {
		for _, r := range f.readings() {
			if r.Time.Equal(f.clock.Now()) {
				return true
			}
		}
		return false
	}, 2*time.Minute, 10*time.Millisecond)
	f.mac("mac-1", "C07AAAAA0001")
	leases := slow.RackV1alpha1().MacNodeLeases("acme")
	_, err := leases.Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	bind := func() error {
		_, err := leases.Bind(t.Context(), "build", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-1"}, metav1.CreateOptions{})
		return err
	}
	err = bind()
	assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	assert.ErrorContains(t, err, "disagree by 1h1m0s")
	clock.SetTime(noon.Add(55 * time.Second))
	require.NoError(t, bind())
	assert.Equal(t, noon.Add(24*time.Hour+time.Minute), f.getLease("acme", "build").Status.EarliestReleaseAt.UTC(), "by the fastest clock")
	assert.Equal(t, noon.Add(time.Minute), f.records("acme")[0].Time.UTC())
}

// A replica that is gone does not block releases for ever.
func TestDeadClock(t *testing.T) {
	f := newFleet(t, 1)
	_, err := f.etcd.Client.Put(t.Context(), "/registry/macrack.io/index/clock/fleet", `{"dead":{"time":"2020-01-01T00:00:00Z","beat":7}}`)
	require.NoError(t, err)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.clock.SetTime(noon.Add(25 * time.Hour))
	f.deleteLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase, "the replica may still be alive")
	require.Eventually(t, func() bool {
		f.clock.Step(5 * time.Second)
		lease := f.getLease("acme", "build")
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		return err == nil
	}, 2*time.Minute, 50*time.Millisecond)
}

// creeping is a clock that advances whenever it is read.
type creeping struct{ *clocktesting.FakeClock }

func (c creeping) Now() time.Time {
	c.Step(700 * time.Millisecond)
	return c.FakeClock.Now()
}

// A record has the time of its decision, however long the decision takes: the day of a lease does
// not begin before its record.
func TestRecordsSayWhenItWasDecided(t *testing.T) {
	f := newFleet(t, 1)
	server := registrytest.StartServer(t, f.etcd, creeping{f.clock})
	leases := server.Client(t, "controllers", "system:masters").RackV1alpha1().MacNodeLeases("acme")
	for n := range 5 {
		name, node := fmt.Sprintf("lease-%d", n), fmt.Sprintf("mac-%d", n)
		f.mac(node, fmt.Sprintf("C07AAAAA%04d", n))
		_, err := leases.Create(t.Context(), newLease("acme", name), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = leases.Bind(t.Context(), name, &rackv1alpha1.MacNodeLeaseBinding{NodeName: node}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, leases.Delete(t.Context(), name, metav1.DeleteOptions{}))
		lease, records := f.getLease("acme", name), f.records("acme")
		bound, held := records[2*n], records[2*n+1]
		require.Equal(t, rackv1alpha1.LeaseBound, bound.Type)
		assert.False(t, lease.Status.BoundAt.Time.Before(bound.Time.Time), "bound at %s, but recorded at %s", lease.Status.BoundAt, bound.Time)
		assert.Less(t, lease.Status.BoundAt.Sub(bound.Time.Time), time.Second)
		require.Equal(t, rackv1alpha1.LeaseHeld, held.Type)
		assert.True(t, lease.Status.HeldAt.Time.Equal(held.Time.Truncate(time.Second)), "held at %s, but recorded at %s", lease.Status.HeldAt, held.Time)
	}
}
