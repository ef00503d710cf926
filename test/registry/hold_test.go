package registry

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

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
