package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
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

// withoutBroadcast takes the permission for broadcasts from a socket. Go's sockets have it, and the
// broadcasts of an allowed network reach all its machines, and the Mac itself.
func withoutBroadcast(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 0) })
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
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
