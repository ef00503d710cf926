package network

import (
	"net/netip"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxNames is the limit of resolved addresses of allowed names.
	maxNames = 1024
	// connectGrace is the time after the time to live of an answer in which a guest that has just
	// read it can still connect.
	connectGrace = 10 * time.Second
	// maxTTL is the limit of a time to live.
	maxTTL = 24 * time.Hour
)

// resolved is an answer of the resolver to the guest.
type resolved struct {
	address netip.Addr
	name    string
}

// nameTable holds the answers for allowed names until their time to live has passed.
type nameTable struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	expires map[resolved]time.Time
}

func newNameTable(clk clock.PassiveClock) *nameTable {
	return &nameTable{clock: clk, expires: map[resolved]time.Time{}}
}

// add adds an answer. A full table loses the answer that expires first.
func (t *nameTable) add(r resolved, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	until := now.Add(min(ttl, maxTTL) + connectGrace)
	if old, ok := t.expires[r]; ok {
		if until.After(old) {
			t.expires[r] = until
		}
		return
	}
	if len(t.expires) >= maxNames {
		t.evict(now)
	}
	t.expires[r] = until
}

func (t *nameTable) evict(now time.Time) {
	var first resolved
	var earliest time.Time
	for r, until := range t.expires {
		if !until.After(now) {
			delete(t.expires, r)
		} else if earliest.IsZero() || until.Before(earliest) {
			first, earliest = r, until
		}
	}
	if len(t.expires) >= maxNames {
		delete(t.expires, first)
	}
}

// of returns the names that were answered with address.
func (t *nameTable) of(address netip.Addr) []string {
	address = address.Unmap()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	var names []string
	for r, until := range t.expires {
		if r.address == address && until.After(now) {
			names = append(names, r.name)
		}
	}
	return names
}
