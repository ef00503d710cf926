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
	// cachedFor is the time for which the UID of a namespace is cached.
	cachedFor = time.Second
	// lookupTimeout is the maximum duration of a lookup that requests share.
	lookupTimeout = 10 * time.Second
	// maxCached is the number of cached UIDs above which the expired ones are dropped.
	maxCached = 1024
)

// Cached returns lookup with a cache of a second. Concurrent requests for a namespace share one
// lookup.
func Cached(clock clock.PassiveClock, lookup Namespaces) Namespaces {
	type entry struct {
		uid   types.UID
		until time.Time
	}
	var (
		lookups singleflight.Group
		mu      sync.Mutex
		entries = map[string]entry{}
	)
	return func(ctx context.Context, name string) (types.UID, error) {
		mu.Lock()
		cached, ok := entries[name]
		mu.Unlock()
		if ok && clock.Now().Before(cached.until) {
			return cached.uid, nil
		}
		found := lookups.DoChan(name, func() (any, error) {
			// The request that starts the lookup may end before the others.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
			defer cancel()
			uid, err := lookup(ctx, name)
			if err != nil {
				return uid, err
			}
			mu.Lock()
			defer mu.Unlock()
			now := clock.Now()
			if len(entries) >= maxCached {
				maps.DeleteFunc(entries, func(_ string, e entry) bool { return !now.Before(e.until) })
			}
			entries[name] = entry{uid, now.Add(cachedFor)}
			return uid, nil
		})
		select {
		case result := <-found:
			uid, _ := result.Val.(types.UID)
			return uid, result.Err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
