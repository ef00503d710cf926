package instance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// startHistory holds the failed starts of one virtual machine until it runs or ends.
type startHistory struct {
	mu sync.Mutex
	// launches counts the tries to start a runner.
	launches   int
	lastLaunch time.Time
	// refusedSince is the time of the kernel's first refusal, and retries counts the tries after
	// it.
	refusedSince time.Time
	retries      int
	// lockedAt is the time of the last start that failed because of a locked login keychain.
	lockedAt time.Time
}

// launchWait returns the number of launches, and the wait before the next one.
func (h *startHistory) launchWait(now time.Time) (launches int, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.launches > 0 {
		pause := launchPause << (h.launches - 1)
		wait = min(pause, h.lastLaunch.Add(pause).Sub(now))
	}
	return h.launches, wait
}

func (h *startHistory) launched(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.launches++
	h.lastLaunch = now
}

// refused records a refusal of the kernel. It returns the time of the first one and the number of
// tries since.
func (h *startHistory) refused(now time.Time) (since time.Time, retries int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusedSince.IsZero() {
		h.refusedSince = now
	}
	return h.refusedSince, h.retries
}

// keychainLocked records a start that failed because of a locked login keychain. It reports whether
// the failure is new.
func (h *startHistory) keychainLocked(at time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.lockedAt.Equal(at)
	h.lockedAt = at
	return !known
}

func (h *startHistory) retried() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retries++
}

// startHistories holds the history of each virtual machine.
type startHistories struct {
	mu    sync.Mutex
	byUID map[types.UID]*startHistory
}

func (h *startHistories) of(uid types.UID) *startHistory {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byUID[uid] == nil {
		h.byUID[uid] = &startHistory{}
	}
	return h.byUID[uid]
}

func (h *startHistories) forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byUID, uid)
}
