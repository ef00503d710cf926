// Package limiters limits the rate of each of many clients.
package limiters

import (
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// Limiters has a rate limiter for each of the clients that were seen last.
type Limiters struct {
	limit rate.Limit
	burst int

	mu      sync.Mutex // so that two requests of a new client have one limiter
	clients *lru.Cache // of *rate.Limiter, by ID
}

// New returns limiters for at most size clients. The client that was seen least recently is
// forgotten for a new one.
func New(size int, limit rate.Limit, burst int) *Limiters {
	return &Limiters{limit: limit, burst: burst, clients: lru.New(size)}
}

// Get returns the limiter of a client.
func (l *Limiters) Get(id string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.clients.Get(id); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(l.limit, l.burst)
	l.clients.Add(id, limiter)
	return limiter
}
