package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

const leaseResource = "leases"

func newMac(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: uid}}
}

// After a Node was deleted and registered again, its Lease belongs to the new Node. Otherwise the
// garbage collector would delete it.
func TestLeaseIsOfTheNodeAsItIsNow(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	client := fake.NewClientset()
	h := newHeartbeats("mac-1", client, clocktesting.NewFakePassiveClock(now))
	assert.True(t, apierrors.IsNotFound(h.renew(t.Context(), 10*time.Second)), "while there is no Node")

	nodes, leases := client.CoreV1().Nodes(), client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for _, uid := range []types.UID{"old", "new"} {
		_, err := nodes.Create(t.Context(), newMac(uid), metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, h.renew(t.Context(), 10*time.Second))
		lease, err := leases.Get(t.Context(), "mac-1", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "mac-1", UID: uid}}, lease.OwnerReferences)
		assert.Equal(t, "mac-1", *lease.Spec.HolderIdentity)
		assert.EqualValues(t, 40, *lease.Spec.LeaseDurationSeconds)
		assert.True(t, lease.Spec.RenewTime.Equal(&metav1.MicroTime{Time: now}))
		require.NoError(t, nodes.Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
		require.NoError(t, leases.Delete(t.Context(), "mac-1", metav1.DeleteOptions{})) // as the garbage collector does
	}
}

// TestLeaseThatOthersWrite checks that a renewal survives another writer.
func TestLeaseThatOthersWrite(t *testing.T) {
	client := fake.NewClientset(newMac("1"))
	h := newHeartbeats("mac-1", client, clocktesting.NewFakePassiveClock(time.Now()))
	require.NoError(t, h.renew(t.Context(), time.Second))
	conflicts := 1
	client.PrependReactor("update", leaseResource, func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts >= 0 {
			return true, nil, apierrors.NewConflict(coordinationv1.Resource(leaseResource), "mac-1", errors.New("written"))
		}
		return false, nil, nil
	})
	require.NoError(t, h.renew(t.Context(), time.Second))
	assert.Equal(t, -1, conflicts)
}

// renewals runs heartbeats in a bubble of synctest and records the renewals.
type renewals struct {
	*heartbeats
	t     *testing.T
	begin time.Time
	fail  error
	times []time.Duration
	lease time.Duration // of the last renewal
}

func startRenewals(t *testing.T) *renewals {
	client := fake.NewClientset(newMac("1"))
	r := &renewals{heartbeats: newHeartbeats("mac-1", client, timers), t: t, begin: time.Now()}
	client.PrependReactor("*", leaseResource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		if r.fail != nil {
			return true, nil, r.fail
		}
		if write, ok := action.(clienttesting.UpdateAction); ok {
			r.times = append(r.times, time.Since(r.begin))
			r.lease = time.Duration(*write.GetObject().(*coordinationv1.Lease).Spec.LeaseDurationSeconds) * time.Second
		}
		return false, nil, nil
	})
	go r.run(t.Context())
	return r
}

// during returns the renewals of a period.
func (r *renewals) during(d time.Duration) []time.Duration {
	synctest.Wait()
	before := len(r.times)
	time.Sleep(d)
	synctest.Wait()
	return r.times[before:]
}

func (r *renewals) gaps(from int, atMost time.Duration) {
	r.t.Helper()
	for i := max(from, 1); i < len(r.times); i++ {
		gap := r.times[i] - r.times[i-1]
		assert.LessOrEqual(r.t, gap, atMost)
		assert.GreaterOrEqual(r.t, gap, atMost*9/10)
	}
}

func TestHeartbeatInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRenewals(t)
		assert.Len(t, r.during(time.Minute), 6)
		r.gaps(0, 10*time.Second)
		assert.Equal(t, 40*time.Second, r.lease)

		// A longer interval applies after the next renewal, which was due under the old one.
		r.set(20 * time.Second)
		next := r.during(10 * time.Second)
		assert.Len(t, next, 1)
		assert.Equal(t, 80*time.Second, r.lease)
		from := len(r.times)
		assert.NotEmpty(t, r.during(2*time.Minute))
		r.gaps(from, 20*time.Second)

		// A shorter one applies within its own length.
		r.set(5 * time.Minute)
		r.during(10 * time.Minute)
		r.set(10 * time.Second)
		assert.NotEmpty(t, r.during(10*time.Second))
		assert.Equal(t, 40*time.Second, r.lease)
		from = len(r.times)
		r.during(time.Minute)
		r.gaps(from, 10*time.Second)
	})
}

// TestFleetShortensItsInterval checks that the agents of a fleet do not all renew at once.
func TestFleetShortensItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fleet []*renewals
		for range 200 {
			r := startRenewals(t)
			r.set(20 * time.Second)
			fleet = append(fleet, r)
		}
		time.Sleep(time.Minute)
		begin, seconds := time.Now(), map[int]int{}
		for _, r := range fleet {
			r.set(10 * time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, r := range fleet {
			last := r.begin.Add(r.times[len(r.times)-1])
			assert.False(t, last.Before(begin), "every agent has renewed within the new interval")
			seconds[int(last.Sub(begin)/time.Second)]++
		}
		for second, n := range seconds {
			assert.Less(t, n, 60, "second %d", second)
		}
	})
}

// TestFailedHeartbeatIsRetried checks that an agent does not wait for its interval after a failure.
func TestFailedHeartbeatIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRenewals(t)
		r.set(5 * time.Minute)
		r.during(time.Minute)
		r.fail = errors.New("unavailable")
		r.during(10 * time.Minute)
		r.fail = nil
		assert.NotEmpty(t, r.during(registerRetry))
	})
}
