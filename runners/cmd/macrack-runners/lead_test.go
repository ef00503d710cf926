package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"macrack.io/macrack/runners/pkg/metrics"
)

// replica is a process that waits for the leadership.
type replica struct {
	core    *fake.Clientset
	metrics *metrics.Metrics
	cutOff  atomic.Bool // from the API
	stop    context.CancelFunc
	began   chan struct{}
	ended   chan error
}

// leaders is the number of replicas that work at the same time.
type leaders struct{ now, most atomic.Int32 }

// newReplica starts a replica that shares the objects of another one.
func newReplica(t *testing.T, objects clienttesting.ObjectTracker, name string, all *leaders) *replica {
	t.Helper()
	r := &replica{core: &fake.Clientset{}, metrics: metrics.New(prometheus.NewRegistry()), began: make(chan struct{}), ended: make(chan error, 1)}
	r.core.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if r.cutOff.Load() {
			return true, nil, errors.New("no connection")
		}
		return clienttesting.ObjectReaction(objects)(action)
	})
	o := &runOptions{election: election{lease: 3 * time.Second, renew: time.Second, retry: 200 * time.Millisecond}}
	o.core, o.namespace = r.core, "acme"
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	t.Cleanup(r.stop)
	go func() {
		r.ended <- o.lead(ctx, name, r.metrics, func(ctx context.Context) error {
			n := all.now.Add(1)
			defer all.now.Add(-1)
			all.most.Store(max(n, all.most.Load()))
			close(r.began)
			<-ctx.Done()
			return nil
		})
	}()
	return r
}

func (r *replica) leads() bool {
	select {
	case <-r.began:
		return true
	default:
		return false
	}
}

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(time.Minute):
		require.Fail(t, "timeout")
	}
	return value
}

func TestAReplicaThatStopsHandsOver(t *testing.T) {
	all, objects := &leaders{}, fake.NewClientset().Tracker()
	first := newReplica(t, objects, "first", all)
	receive(t, first.began)
	second := newReplica(t, objects, "second", all)
	time.Sleep(500 * time.Millisecond)
	assert.False(t, second.leads())
	assert.Equal(t, 1.0, testutil.ToFloat64(first.metrics.Leader))
	first.stop()
	require.NoError(t, receive(t, first.ended))
	receive(t, second.began)
	assert.Equal(t, int32(1), all.most.Load(), "one at a time")
	second.stop()
	require.NoError(t, receive(t, second.ended))
}

// A replica that cannot renew its leadership stops before another one works.
func TestAReplicaThatIsCutOffStops(t *testing.T) {
	all, objects := &leaders{}, fake.NewClientset().Tracker()
	first := newReplica(t, objects, "first", all)
	receive(t, first.began)
	second := newReplica(t, objects, "second", all)
	first.cutOff.Store(true)
	require.ErrorIs(t, receive(t, first.ended), errLeadershipLost)
	receive(t, second.began)
	assert.Equal(t, int32(1), all.most.Load(), "one at a time")
	second.stop()
	require.NoError(t, receive(t, second.ended))
}

func TestAReplicaThatNeverLed(t *testing.T) {
	all, objects := &leaders{}, fake.NewClientset().Tracker()
	first := newReplica(t, objects, "first", all)
	receive(t, first.began)
	second := newReplica(t, objects, "second", all)
	second.stop()
	require.NoError(t, receive(t, second.ended))
	assert.False(t, second.leads())
	first.stop()
	require.NoError(t, receive(t, first.ended))
}
