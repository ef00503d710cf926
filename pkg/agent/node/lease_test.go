package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
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

// renewals records the renewals of a Mac in a bubble of synctest.
type renewals struct {
	*heartbeats
	t     *testing.T
	begin time.Time

	mu       sync.Mutex
	fail     error
	attempts int
	times    []time.Duration
	lease    time.Duration // of the last renewal
}

func startRenewals(t *testing.T) *renewals { return startFleet(t, 1)[0] }

// startFleet starts the heartbeats of a number of Macs.
func startFleet(t *testing.T, macs int) []*renewals {
	client, fleet, byName := fake.NewClientset(), make([]*renewals, macs), map[string]*renewals{}
	for i := range fleet {
		name := fmt.Sprint("mac-", i)
		fleet[i] = &renewals{heartbeats: newHeartbeats(name, client, timers), t: t, begin: time.Now()}
		byName[name] = fleet[i]
	}
	client.PrependReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node := newMac("1")
		node.Name = action.(clienttesting.GetAction).GetName()
		return true, node, nil
	})
	client.PrependReactor("get", leaseResource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(coordinationv1.Resource(leaseResource), action.(clienttesting.GetAction).GetName())
	})
	write := func(action clienttesting.Action) (bool, runtime.Object, error) {
		lease := action.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease)
		return true, lease, byName[lease.Name].renewed(lease)
	}
	client.PrependReactor("create", leaseResource, write)
	client.PrependReactor("update", leaseResource, write)
	for _, r := range fleet {
		go r.run(t.Context())
	}
	return fleet
}

func (r *renewals) renewed(lease *coordinationv1.Lease) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts++
	if r.fail != nil {
		return r.fail
	}
	r.times = append(r.times, time.Since(r.begin))
	r.lease = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	return nil
}

// during returns the renewals of a period, after which the Lease has the duration.
func (r *renewals) during(d, lease time.Duration) []time.Duration {
	r.t.Helper()
	synctest.Wait()
	before := len(r.all())
	time.Sleep(d)
	synctest.Wait()
	times := r.all()[before:]
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Equal(r.t, lease, r.lease)
	return times
}

func (r *renewals) all() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times)
}

func (r *renewals) setFail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail, r.attempts = err, 0
}

// assertGaps checks the time between renewals.
func assertGaps(t *testing.T, times []time.Duration, interval time.Duration) {
	t.Helper()
	for i := 1; i < len(times); i++ {
		assert.LessOrEqual(t, times[i]-times[i-1], interval)
		assert.GreaterOrEqual(t, times[i]-times[i-1], interval*9/10)
	}
}

func TestHeartbeatInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRenewals(t)
		times := r.during(time.Minute, 40*time.Second)
		assert.GreaterOrEqual(t, len(times), 5)
		assertGaps(t, times, 10*time.Second)

		// A longer interval applies after the next renewal, which was due under the old one.
		r.set(20 * time.Second)
		assert.Len(t, r.during(10*time.Second, 80*time.Second), 1)
		times = r.during(2*time.Minute, 80*time.Second)
		assert.GreaterOrEqual(t, len(times), 5)
		assertGaps(t, times, 20*time.Second)

		// A shorter one applies within its own length.
		r.set(5 * time.Minute)
		r.during(10*time.Minute, 20*time.Minute)
		r.set(10 * time.Second)
		assert.NotEmpty(t, r.during(10*time.Second, 40*time.Second))
		times = r.during(time.Minute, 40*time.Second)
		assert.GreaterOrEqual(t, len(times), 5)
		assertGaps(t, times, 10*time.Second)
	})
}

// TestFleetShortensItsInterval checks that the agents of a fleet do not all renew at once.
func TestFleetShortensItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := startFleet(t, 200)
		for _, r := range fleet {
			r.set(5 * time.Minute)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		begin, seconds := time.Now(), map[int]int{}
		for _, r := range fleet {
			r.set(10 * time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, r := range fleet {
			times := r.all()
			last := r.begin.Add(times[len(times)-1])
			assert.False(t, last.Before(begin), "every agent has renewed within the new interval")
			seconds[int(last.Sub(begin)/time.Second)]++
		}
		for second, n := range seconds {
			assert.Less(t, n, 60, "second %d", second)
		}
	})
}

// TestFailedHeartbeatIsRetried checks that an agent does not wait for its interval after a failure,
// and does not add to the load of an API that fails.
func TestFailedHeartbeatIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRenewals(t)
		r.set(5 * time.Minute)
		r.during(time.Minute, 20*time.Minute)
		r.setFail(errors.New("unavailable"))
		r.during(10*time.Minute, 20*time.Minute)
		r.mu.Lock()
		assert.Less(t, r.attempts, 65)
		assert.Greater(t, r.attempts, 20)
		r.mu.Unlock()
		r.setFail(nil)
		assert.NotEmpty(t, r.during(DefaultHeartbeat, 20*time.Minute))
	})
}
