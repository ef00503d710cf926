package registry

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func withCaches(lease *rackv1alpha1.MacNodeLease, sizes ...string) *rackv1alpha1.MacNodeLease {
	names := []string{"gems", "sources", "derived-data"}
	for i, size := range sizes {
		lease.Spec.Caches = append(lease.Spec.Caches, rackv1alpha1.LeaseCache{Name: names[i], SizeLimit: scalar.MustParse(size)})
	}
	return lease
}

// The disks of the instances and the caches of the lease fit on the Mac together.
func TestCaches(t *testing.T) {
	f := newFleet(t, 1) // Macs with 448Gi for two instances of 64Gi
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	create := func(lease *rackv1alpha1.MacNodeLease) error {
		_, err := f.acme.RackV1alpha1().MacNodeLeases(lease.Namespace).Create(t.Context(), lease, metav1.CreateOptions{})
		return err
	}
	for _, sizes := range [][]string{{"448Gi"}, {"300Gi", "200Gi"}, {"16Ti"}} {
		err := create(withCaches(newLease("acme", "large"), sizes...))
		assert.True(t, apierrors.IsInvalid(err), "%v", err)
		assert.ErrorContains(t, err, `spec.caches: Invalid value:`)
		assert.ErrorContains(t, err, `but a Mac of class "base" has 448Gi for them and for its instances; use smaller caches`)
	}
	lease := withCaches(newLease("acme", "build"), "300Gi", "20Gi")
	require.NoError(t, create(lease))
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	assert.Equal(t, lease.Spec.Caches, f.node("mac-1").Status.Caches)
	f.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) { s.Caches = nil })
	assert.Equal(t, lease.Spec.Caches, f.node("mac-1").Status.Caches, "the agent must not write this field")

	changed := f.getLease("acme", "build")
	changed.Spec.Caches = changed.Spec.Caches[:1]
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Update(t.Context(), changed, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	assert.ErrorContains(t, err, "spec.caches: Forbidden: field is immutable")

	instance := func(name, lease string, caches ...instancev1alpha1.InstanceCache) *instancev1alpha1.MacOSInstance {
		i := newInstance("acme", name, lease)
		i.Spec.Caches = caches
		return i
	}
	err = f.create(t.Context(), instance("a", "build", instancev1alpha1.InstanceCache{Name: "gems"}, instancev1alpha1.InstanceCache{Name: "derived-data"}))
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, `lease "build" has no cache "derived-data"`)
	records := f.records("acme")
	assert.Equal(t, "NoSuchCache", records[len(records)-1].Details.Reason)
	require.NoError(t, f.create(t.Context(), instance("a", "build", instancev1alpha1.InstanceCache{Name: "gems"})))
	require.NoError(t, f.create(t.Context(), instance("b", "build", instancev1alpha1.InstanceCache{Name: "gems", ReadOnly: true})), "to the byte")

	require.NoError(t, create(withCaches(newLease("acme", "fuller"), "321Gi")))
	require.NoError(t, f.bind("acme", "fuller", "mac-2"))
	require.NoError(t, f.create(t.Context(), instance("c", "fuller")))
	err = f.create(t.Context(), instance("d", "fuller"))
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, `asks for 64Gi storage, but a Mac of class "base" has 63Gi left for it`, "caches count although no instance uses them")
}
