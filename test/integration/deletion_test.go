package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// A lease deleted before its floor is Held, however it is deleted: it keeps the Mac, and its
// instances are stopped and stay with it.
func TestForcedDeletion(t *testing.T) {
	deleteAs := func(options metav1.DeleteOptions) func(*testing.T, string) {
		return func(t *testing.T, name string) {
			require.NoError(t, client(t, acme).RackV1alpha1().MacNodeLeases(acme).Delete(t.Context(), name, options))
		}
	}
	for n, tt := range []struct {
		name string
		by   func(t *testing.T, name string)
	}{
		{"force", func(t *testing.T, name string) {
			kubectl(t, acme, "delete", leases, name, "--force", "--grace-period=0", "--wait=false")
		}},
		{"cascade orphan", func(t *testing.T, name string) {
			kubectl(t, acme, "delete", leases, name, "--cascade=orphan", "--wait=false")
		}},
		{"cascade foreground", func(t *testing.T, name string) {
			kubectl(t, acme, "delete", leases, name, "--cascade=foreground", "--wait=false")
		}},
		{"collection", func(t *testing.T, _ string) { kubectl(t, acme, "delete", leases, "--all", "--wait=false") }},
		{"collection by force", func(t *testing.T, _ string) {
			require.NoError(t, client(t, acme).RackV1alpha1().MacNodeLeases(acme).DeleteCollection(t.Context(),
				metav1.DeleteOptions{GracePeriodSeconds: new(int64), PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}, metav1.ListOptions{}))
		}},
		{"orphanDependents", deleteAs(metav1.DeleteOptions{OrphanDependents: ptr.To(true), GracePeriodSeconds: new(int64)})}, //nolint:staticcheck // deprecated, but still accepted
		{"ignoring store read errors", func(t *testing.T, name string) {
			// Unsafe deletion is for unreadable objects, and needs a right of its own. A tenant is
			// refused, and the lease is deleted as usual.
			err := client(t, acme).RackV1alpha1().MacNodeLeases(acme).Delete(t.Context(), name, metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr.To(true)})
			assert.Error(t, err)
			assert.Nil(t, getLease(t, acme, name).DeletionTimestamp)
			deleteAs(metav1.DeleteOptions{})(t, name)
		}},
		{"twice", func(t *testing.T, name string) {
			deleteAs(metav1.DeleteOptions{})(t, name)
			deleteAs(metav1.DeleteOptions{GracePeriodSeconds: new(int64)})(t, name)
			deleteAs(metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})(t, name)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reset(t)
			name := fmt.Sprintf("forced-%d", n)
			lease := leaseMac(t, acme, name)
			instance := startInstance(t, acme, name, name)
			tt.by(t, name)

			held := getLease(t, acme, name)
			assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, held.Status.Phase)
			assert.Contains(t, held.Finalizers, rules.FinalizerFloor)
			assert.NotContains(t, held.Finalizers, metav1.FinalizerOrphanDependents)
			assert.True(t, lease.Status.EarliestReleaseAt.Equal(held.Status.EarliestReleaseAt))
			assert.Equal(t, lease.UID, getMac(t, lease.Status.NodeName).Status.LeaseRef.UID)
			recorded := records(t, acme, rackv1alpha1.LeaseHeld, name)
			if assert.Len(t, recorded, 1) {
				assert.Equal(t, acme, recorded[0].Actor.Username)
			}
			eventually(t, func(c *assert.CollectT) {
				now, err := client(t, admin).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) { // foreground deletion has deleted it after its stop
					assert.Empty(c, getLease(t, acme, name).Status.Instances)
					return
				}
				require.NoError(c, err)
				assert.EqualValues(c, "Stopped", now.Status.Phase)
				assert.Equal(c, instance.OwnerReferences, now.OwnerReferences, "not orphaned")
			})
			assert.Equal(t, []string{"macrack.io/tenant=acme:NoSchedule"}, ourTaints(t, t, lease.Status.NodeName))
		})
	}
}

// A namespace that loses its finalizers and is created again for the next customer does not get the
// Macs of the former one.
func TestNamespaceIsFinalized(t *testing.T) {
	reset(t)
	const doomed = "forced"
	kubectl(t, admin, "create", "namespace", doomed)
	create(t, admin, leaseManifest("old"), "--namespace="+doomed)
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=condition=Bound", leases+"/old", "--timeout="+patience.String())
	lease := getLease(t, doomed, "old")
	kubectl(t, admin, "delete", "namespace", doomed, "--wait=false")
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=jsonpath={.status.phase}=Held", leases+"/old", "--timeout="+patience.String())
	eventually(t, func(c *assert.CollectT) {
		namespace, err := kube(t).CoreV1().Namespaces().Get(t.Context(), doomed, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		require.NoError(c, err)
		namespace.Spec.Finalizers = nil
		_, err = kube(t).CoreV1().Namespaces().Finalize(t.Context(), namespace, metav1.UpdateOptions{})
		require.NoError(c, err)
		assert.Fail(c, "it still exists")
	})

	kubectl(t, admin, "create", "namespace", doomed)
	said := createFails(t, admin, instanceManifest("vm", "old"), "--namespace="+doomed)
	assert.Contains(t, said, "rule 2")
	assert.Contains(t, said, "is from an earlier namespace")
	assert.Len(t, records(t, doomed, rackv1alpha1.InstanceRejected, "old"), 1)
	create(t, admin, leaseManifest("new"), "--namespace="+doomed)
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=condition=Bound", leases+"/new", "--timeout="+patience.String())
	assert.Contains(t, createFails(t, admin, instanceManifest("vm", "old"), "--namespace="+doomed), "is from an earlier namespace", "also after the namespace was created again")
	create(t, admin, instanceManifest("vm", "new"), "--namespace="+doomed)
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=jsonpath={.status.phase}=Running", instances+"/vm", "--timeout="+patience.String())

	kubectl(t, admin, "delete", "namespace", doomed, "--wait=false")
	toFloor(t, lease, 0)
	toFloor(t, getLease(t, doomed, "new"), 0)
	kubectl(t, admin, "wait", "--for=delete", "namespace/"+doomed, "--timeout="+patience.String())
	assertCompliant(t)
}

// A deleted namespace keeps its leases, and so itself, until their floors.
func TestNamespaceDeletion(t *testing.T) {
	reset(t)
	const doomed = "doomed"
	kubectl(t, admin, "create", "namespace", doomed)
	create(t, admin, leaseManifest("inside"), "--namespace="+doomed)
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=condition=Bound", leases+"/inside", "--timeout="+patience.String())
	lease := getLease(t, doomed, "inside")
	create(t, admin, instanceManifest("vm", "inside"), "--namespace="+doomed)
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=jsonpath={.status.phase}=Running", instances+"/vm", "--timeout="+patience.String())

	kubectl(t, admin, "delete", "namespace", doomed, "--wait=false")
	kubectl(t, admin, "wait", "--namespace="+doomed, "--for=jsonpath={.status.phase}=Held", leases+"/inside", "--timeout="+patience.String())
	recorded := records(t, doomed, rackv1alpha1.LeaseHeld, "inside")
	require.Len(t, recorded, 1)
	assert.Equal(t, "system:serviceaccount:kube-system:namespace-controller", recorded[0].Actor.Username)
	assert.Equal(t, lease.UID, getMac(t, lease.Status.NodeName).Status.LeaseRef.UID)
	said := createFails(t, admin, leaseManifest("another"), "--namespace="+doomed)
	assert.Contains(t, said, "being terminated")

	toFloor(t, lease, 0)
	kubectl(t, admin, "wait", "--for=delete", "namespace/"+doomed, "--timeout="+patience.String())
	assert.Len(t, records(t, doomed, rackv1alpha1.LeaseReleased, "inside"), 1, "records outlive the namespace")
	assertCompliant(t)
}
