package sets

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

// gems returns the cache gems of a lease.
func gems(size string) []rackv1alpha1.LeaseCache {
	return []rackv1alpha1.LeaseCache{{Name: "gems", SizeLimit: scalar.MustParse(size)}}
}

// useGems makes the set use the cache gems from now on.
func (w *world) useGems(readOnly bool) {
	w.config.Leases.Caches = gems("1Gi")
	w.config.Instances.Caches = []instancev1alpha1.InstanceCache{{Name: "gems", ReadOnly: readOnly}}
}

func TestCaches(t *testing.T) {
	w := newWorld(t, "")
	w.useGems(true)
	w.run()
	assert.Equal(t, gems("1Gi"), w.allLeases()[0].Spec.Caches)
	require.Len(t, w.all(), 2)
	for _, instance := range w.all() {
		assert.Equal(t, []instancev1alpha1.InstanceCache{{Name: "gems", ReadOnly: true}}, instance.Spec.Caches)
	}
	before := w.all()
	w.step()
	assert.Equal(t, before, w.all(), "the settings are the same")
}

// A change of the caches replaces the machine without a job, and leaves the other one alone.
func TestAChangeOfTheCaches(t *testing.T) {
	w := newWorld(t, "")
	w.useGems(true)
	busy := w.run()
	w.boot()
	w.useGems(false)
	w.step()
	w.step()
	require.Len(t, w.all(), 2)
	for _, instance := range w.all() {
		assert.Equal(t, []instancev1alpha1.InstanceCache{{Name: "gems", ReadOnly: instance.Name == busy.Name}}, instance.Spec.Caches)
	}
	w.eventsContain("Outdated")
}

// The API refuses an instance with a cache that its lease does not have.
func TestALeaseFromBeforeTheCaches(t *testing.T) {
	w := newWorld(t, "")
	w.run()
	before := w.all()
	w.useGems(false)
	w.step()
	assert.Equal(t, before, w.all(), "its machines cannot use the cache")

	w.source.jobs = 3
	for range 4 {
		w.step()
		w.bind()
		w.boot()
	}
	require.Len(t, w.allLeases(), 2)
	assert.Empty(t, w.allLeases()[0].Spec.Caches)
	assert.Equal(t, gems("1Gi"), w.allLeases()[1].Spec.Caches)
	require.Len(t, w.all(), 4)
	for _, instance := range w.all() {
		assert.Equal(t, instance.Spec.LeaseName == "ios-2", len(instance.Spec.Caches) == 1, instance.Name)
	}
}

// A cache of another size is the same cache to the instances.
func TestALeaseWithACacheOfAnotherSize(t *testing.T) {
	w := newWorld(t, "")
	w.useGems(false)
	w.run()
	before := w.all()
	w.config.Leases.Caches = gems("2Gi")
	w.step()
	assert.Equal(t, before, w.all())
}
