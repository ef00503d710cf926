package metrics

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// heartbeats has the time of the last heartbeat of each Mac by the clock of this process: the clock
// of a Mac may be wrong. A heartbeat from before the start of this process has the time that the
// Mac has written, unless it is in the future.
type heartbeats struct {
	clock clock.PassiveClock

	mu   sync.RWMutex
	last map[string]heartbeat
}

type heartbeat struct {
	// renewed is the time that the Mac has written.
	renewed time.Time
	// at is the time of the heartbeat.
	at time.Time
}

func newHeartbeats(clock clock.PassiveClock) *heartbeats {
	return &heartbeats{clock: clock, last: map[string]heartbeat{}}
}

// watch observes the Leases of the Nodes.
func (h *heartbeats) watch(informer cache.SharedIndexInformer) {
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    h.observe,
		UpdateFunc: func(_, obj any) { h.observe(obj, false) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				h.forget(key.Name)
			}
		},
	})
}

func (h *heartbeats) observe(obj any, initial bool) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || lease.Spec.RenewTime == nil {
		return
	}
	renewed, now := lease.Spec.RenewTime.Time, h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last[lease.Name].renewed.Equal(renewed) {
		return
	}
	at := now
	if initial && renewed.Before(now) {
		at = renewed
	}
	h.last[lease.Name] = heartbeat{renewed: renewed, at: at}
}

func (h *heartbeats) get(name string) (at time.Time, found bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	last, found := h.last[name]
	return last.at, found
}

func (h *heartbeats) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.last, name)
}
