package tenancy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestCached(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(noon)
	asked := map[string]int{}
	var fail error
	namespaces := Cached(clock, func(_ context.Context, name string) (types.UID, error) {
		asked[name]++
		return types.UID(fmt.Sprint(name, asked[name])), fail
	})
	ask := func(name string, want types.UID) {
		t.Helper()
		uid, err := namespaces(t.Context(), name)
		require.NoError(t, err)
		assert.Equal(t, want, uid)
	}
	ask("acme", "acme1")
	ask("acme", "acme1")
	ask("globex", "globex1")
	clock.SetTime(noon.Add(cachedFor))
	ask("acme", "acme2")
	clock.SetTime(noon.Add(2 * cachedFor))
	fail = errors.New("away")
	_, err := namespaces(t.Context(), "acme")
	require.ErrorIs(t, err, fail)
	fail = nil
	ask("acme", "acme4")
}

// Concurrent requests for a namespace share one lookup, and each ends with its own context.
func TestCachedLooksUpOnce(t *testing.T) {
	var asked atomic.Int32
	answer := make(chan struct{})
	namespaces := Cached(clocktesting.NewFakePassiveClock(noon), func(ctx context.Context, _ string) (types.UID, error) {
		asked.Add(1)
		<-answer
		return "1", ctx.Err()
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := namespaces(ended, "acme") // the request that starts the lookup
	require.ErrorIs(t, err, context.Canceled)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			uid, err := namespaces(t.Context(), "acme")
			assert.NoError(t, err)
			assert.Equal(t, types.UID("1"), uid)
		})
	}
	time.AfterFunc(10*time.Millisecond, func() { close(answer) })
	all.Wait()
	assert.EqualValues(t, 1, asked.Load())
}
