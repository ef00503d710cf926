package tenancy

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// rememberedFor is how long an answer about a namespace is remembered.
	rememberedFor = time.Second
	// askTimeout bounds a question whose answer several requests wait for.
	askTimeout = 10 * time.Second
	// maxRemembered is the number of answers from which on old ones are dropped.
	maxRemembered = 1024
)

// Remember returns a function that asks ask once for all requests that want to know of a namespace
// at the same time, and remembers the answer for a second.
func Remember(clock clock.PassiveClock, ask Namespaces) Namespaces {
	type answer struct {
		uid   types.UID
		until time.Time
	}
	var (
		asking  singleflight.Group
		mu      sync.Mutex
		answers = map[string]answer{}
	)
	return func(ctx context.Context, name string) (types.UID, error) {
		mu.Lock()
		known, ok := answers[name]
		mu.Unlock()
		if ok && clock.Now().Before(known.until) {
			return known.uid, nil
		}
		asked := asking.DoChan(name, func() (any, error) {
			// The request that asks may end before the others.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
			defer cancel()
			uid, err := ask(ctx, name)
			if err != nil {
				return uid, err
			}
			mu.Lock()
			defer mu.Unlock()
			now := clock.Now()
			if len(answers) >= maxRemembered {
				maps.DeleteFunc(answers, func(_ string, a answer) bool { return !now.Before(a.until) })
			}
			answers[name] = answer{uid, now.Add(rememberedFor)}
			return uid, nil
		})
		select {
		case result := <-asked:
			uid, _ := result.Val.(types.UID)
			return uid, result.Err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
