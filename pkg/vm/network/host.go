package network

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// hostAge is the time for which the addresses of the host are cached.
const hostAge = 5 * time.Second

// hostCache caches the addresses of the host.
type hostCache struct {
	clock clock.PassiveClock
	read  func() ([]netip.Addr, error)

	mu    sync.Mutex
	known []netip.Addr
	at    time.Time
}

func (h *hostCache) addresses() ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.at.IsZero() && h.clock.Since(h.at) < hostAge {
		return h.known, nil
	}
	known, err := h.read()
	if err != nil {
		return nil, err
	}
	h.known, h.at = known, h.clock.Now()
	return known, nil
}

// hostAddresses returns the addresses of all interfaces.
func hostAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, prefix.Addr())
		}
	}
	return addresses, nil
}
