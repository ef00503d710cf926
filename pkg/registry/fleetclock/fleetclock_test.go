package fleetclock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics/legacyregistry"
	clocktesting "k8s.io/utils/clock/testing"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// store is a transaction on one key.
type store struct {
	value    []byte
	restored int // the number of times that a replica found it restored
}

func (s *store) GetKey(context.Context, string, string) ([]byte, bool, error) {
	return s.value, s.value != nil, nil
}

func (s *store) PutKey(_, _ string, value []byte) error {
	s.value = value
	return nil
}

// replica is a Clock that beats when it is told.
type replica struct {
	*Clock
	clock *clocktesting.FakeClock
	store *store
}

func newReplica(t *testing.T, s *store, at time.Time) *replica {
	clock := clocktesting.NewFakeClock(at)
	r := &replica{New(clock), clock, s}
	require.NoError(t, r.next(nil))
	return r
}

// next lets the replica beat once more, or fail to.
func (r *replica) next(err error) error {
	r.clock.Step(interval)
	return r.Tick(context.Background(), func(ctx context.Context, plan func(context.Context, Tx) error) error {
		// The first try meets a conflict, which must not count.
		return errors.Join(plan(ctx, &store{value: r.store.value}), err, func() error {
			if err != nil {
				return nil
			}
			return plan(ctx, r.store)
		}())
	}, func(context.Context) error {
		r.store.restored++
		return nil
	})
}

func (r *replica) earliest(t *testing.T, now time.Time) time.Time {
	t.Helper()
	at, err := r.Earliest(t.Context(), r.store, now)
	require.NoError(t, err)
	return at
}

func TestEarliestAndLatest(t *testing.T) {
	s := &store{}
	before := noon.Add(-interval)
	right, fast := newReplica(t, s, before), newReplica(t, s, before.Add(time.Hour))
	future := noon.Add(48 * time.Hour)
	assert.Equal(t, noon, fast.earliest(t, fast.clock.Now()), "by the other's reading")
	assert.Equal(t, noon, right.earliest(t, future), "by its own clock, whatever is on record")
	assert.Equal(t, noon.Add(-time.Second), right.earliest(t, noon.Add(-time.Second)))

	_, err := right.Latest(t.Context(), s, noon)
	assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	assert.ErrorContains(t, err, "disagree by 1h0m0s")
	at, err := fast.Latest(t.Context(), s, fast.clock.Now())
	require.NoError(t, err, "the other may be gone")
	assert.Equal(t, fast.clock.Now(), at)
	right.clock.SetTime(noon.Add(time.Hour - time.Second))
	at, err = right.Latest(t.Context(), s, right.clock.Now())
	require.NoError(t, err)
	assert.Equal(t, noon.Add(time.Hour), at)
}

// A replica that could not beat because etcd was away is not forgotten, however long that was.
func TestOutage(t *testing.T) {
	for missed := range 2 * missedBeats {
		s := &store{}
		fast := newReplica(t, s, noon.Add(time.Hour))
		newReplica(t, s, noon)
		require.NoError(t, fast.next(nil))
		for range missed {
			assert.Error(t, fast.next(errors.New("etcd is away")))
		}
		require.NoError(t, fast.next(nil))
		assert.Equal(t, noon.Add(interval), fast.earliest(t, fast.clock.Now()), "after %d beats", missed)
	}
}

// A replica that is gone is forgotten.
func TestForgets(t *testing.T) {
	s := &store{}
	fast := newReplica(t, s, noon.Add(time.Hour))
	newReplica(t, s, noon)
	for range missedBeats {
		require.NoError(t, fast.next(nil))
		assert.Equal(t, noon.Add(interval), fast.earliest(t, fast.clock.Now()))
	}
	require.NoError(t, fast.next(nil))
	assert.Equal(t, fast.clock.Now(), fast.earliest(t, fast.clock.Now()))
}

func TestSkewIsMeasured(t *testing.T) {
	value := func() float64 {
		families, err := legacyregistry.DefaultGatherer.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "macrack_replica_clock_skew_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	s := &store{}
	a := newReplica(t, s, noon)
	assert.Zero(t, value(), "a single replica")
	b := newReplica(t, s, noon.Add(time.Minute))
	require.NoError(t, a.next(nil))
	fast := value()
	assert.InDelta(t, 55, fast, 5, "one replica is ahead by a minute")
	require.NoError(t, a.next(nil))
	assert.Equal(t, fast, value(), "the same reading again")
	require.NoError(t, b.next(nil))
	assert.InDelta(t, 60, value(), 10, "seen by the other replica")
	for range missedBeats + 1 {
		require.NoError(t, a.next(nil))
	}
	assert.Zero(t, value(), "the other replica is dead")
}

// A replica notices that etcd was restored: its own last reading is missing, or no live replica has
// left one. It binds no lease before it has acted on that.
func TestRestoredEtcd(t *testing.T) {
	s := &store{}
	_, err := New(clocktesting.NewFakeClock(noon)).Latest(t.Context(), s, noon)
	assert.True(t, apierrors.IsServiceUnavailable(err), "a new replica has not looked yet: %v", err)
	a := newReplica(t, s, noon)
	assert.Equal(t, 1, s.restored, "the first replica cannot know what happened before")
	newReplica(t, s, noon.Add(interval))
	assert.Equal(t, 1, s.restored, "a live replica has left its reading")

	backup := s.value
	require.NoError(t, a.next(nil))
	require.NoError(t, a.next(nil))
	assert.Equal(t, 1, s.restored)
	_, err = a.Latest(t.Context(), s, noon)
	require.NoError(t, err)

	s.value = backup
	_, err = a.Latest(t.Context(), s, noon)
	assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	require.NoError(t, a.next(nil))
	assert.Equal(t, 2, s.restored)
	_, err = a.Latest(t.Context(), s, noon)
	require.NoError(t, err)

	s.value = nil
	require.NoError(t, a.next(nil))
	assert.Equal(t, 3, s.restored, "etcd is empty")

	s.value = backup
	newReplica(t, s, noon.Add(time.Hour))
	assert.Equal(t, 4, s.restored, "the readings in the backup are old")
}

// during is a transaction in which something happens after it has read.
type during struct {
	*store
	happen func()
}

func (d during) GetKey(ctx context.Context, index, name string) ([]byte, bool, error) {
	value, found, err := d.store.GetKey(ctx, index, name)
	d.happen()
	return value, found, err
}

// A reading that is written meanwhile does not look lost.
func TestBeatDuringATransaction(t *testing.T) {
	r := newReplica(t, &store{}, noon)
	_, err := r.Latest(t.Context(), during{r.store, func() { require.NoError(t, r.next(nil)) }}, noon)
	require.NoError(t, err)
	continuous, err := r.continuous(t.Context(), during{r.store, func() { require.NoError(t, r.next(nil)) }})
	require.NoError(t, err)
	assert.True(t, continuous)
}
