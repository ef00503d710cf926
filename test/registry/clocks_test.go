package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/registrytest"
)

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
	const key = registrytest.ClockKey
	stored, err := f.etcd.Client.Get(t.Context(), key)
	require.NoError(t, err)
	others := strings.TrimPrefix(string(stored.Kvs[0].Value), "{")
	_, err = f.etcd.Client.Put(t.Context(), key, `{"dead":{"time":"2020-01-01T00:00:00Z","beat":7},`+others)
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
