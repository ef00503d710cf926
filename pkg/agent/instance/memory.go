package instance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// memory is what the agent remembers of the failed starts of one virtual machine, until it runs or
// ends.
type memory struct {
	mu sync.Mutex
	// launches counts the tries to start a runner.
	launches   int
	lastLaunch time.Time
	// refusedSince is the time of the kernel's first refusal, and retries counts the tries after
	// it.
	refusedSince time.Time
	retries      int
}

// launchWait returns the number of launches, and the wait before the next one.
func (m *memory) launchWait(now time.Time) (launches int, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.launches > 0 {
		pause := launchPause << (m.launches - 1)
		wait = min(pause, m.lastLaunch.Add(pause).Sub(now))
	}
	return m.launches, wait
}

func (m *memory) launched(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launches++
	m.lastLaunch = now
}

// refused notes a refusal of the kernel. It returns the time of the first one and the number of
// tries since.
func (m *memory) refused(now time.Time) (since time.Time, retries int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusedSince.IsZero() {
		m.refusedSince = now
	}
	return m.refusedSince, m.retries
}

func (m *memory) retried() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retries++
}

// memories holds the memory of each virtual machine.
type memories struct {
	mu    sync.Mutex
	byUID map[types.UID]*memory
}

func (m *memories) of(uid types.UID) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byUID[uid] == nil {
		m.byUID[uid] = &memory{}
	}
	return m.byUID[uid]
}

func (m *memories) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byUID, uid)
}
