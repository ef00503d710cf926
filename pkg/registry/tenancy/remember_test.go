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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRemember(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(noon)
	asked := map[string]int{}
	var fail error
	namespaces := Remember(clock, func(_ context.Context, name string) (types.UID, error) {
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
	clock.SetTime(noon.Add(rememberedFor))
	ask("acme", "acme2")
	clock.SetTime(noon.Add(2 * rememberedFor))
	fail = errors.New("away")
	_, err := namespaces(t.Context(), "acme")
	require.ErrorIs(t, err, fail)
	fail = nil
	ask("acme", "acme4")
}

// Requests that want to know the same at the same time ask once, and none waits longer than it
// lives.
func TestRememberAsksOnce(t *testing.T) {
	var asked atomic.Int32
	answer := make(chan struct{})
	namespaces := Remember(clocktesting.NewFakePassiveClock(noon), func(ctx context.Context, _ string) (types.UID, error) {
		asked.Add(1)
		<-answer
		return "1", ctx.Err()
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := namespaces(ended, "acme") // the one that asks
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

// A cache that lags behind gives no user the objects of an earlier namespace, nor its life key back
// to it.
func TestLaggingCache(t *testing.T) {
	for name, tt := range map[string]struct {
		cached, key, live types.UID
		want              string
		asks              int
	}{
		"the life of the key":                    {"2", "2", "3", "status.namespaceUID=2", 0},
		"another replica has seen the next life": {"1", "2", "2", "status.namespaceUID=2", 1},
		"a life without leases":                  {"2", "1", "2", "status.namespaceUID=2", 1},
		"a namespace that has gone":              {"1", "2", "", "<nothing>", 1},
		"a name without leases":                  {"2", "", "2", "status.namespaceUID=2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			asks := 0
			l := &Lives{
				Namespaces: func(context.Context, string) (types.UID, error) { return tt.cached, nil },
				Live:       func(context.Context, string) (types.UID, error) { asks++; return tt.live, nil },
				Key: func(context.Context, string, string) ([]byte, int64, error) {
					if tt.key == "" {
						return nil, 0, nil
					}
					return encode(tt.key, noon), 100, nil
				},
				Everywhere: func(context.Context) (bool, error) { return false, nil },
			}
			for range 2 { // what was found is remembered
				selector, err := l.Own(genericapirequest.WithNamespace(t.Context(), "acme"))
				require.NoError(t, err)
				if tt.want == "<nothing>" {
					assert.False(t, selector.Matches(fields.Set{"status.namespaceUID": string(tt.cached)}))
				} else {
					assert.Equal(t, tt.want, selector.String())
				}
			}
			assert.Equal(t, tt.asks, asks)
			uid, err := confirm(t.Context(), l.Live, "acme", tt.cached, tt.key)
			require.NoError(t, err)
			if tt.cached == tt.key {
				assert.Equal(t, tt.cached, uid)
			} else {
				assert.Equal(t, tt.live, uid, "of a new lease")
			}
		})
	}
}
