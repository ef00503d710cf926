package network

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Hasten shortens the times for which connections that end wait for the guest.
func (n *Network) Hasten(settle, halfOpen time.Duration) {
	n.settleTimeout, n.halfOpen = settle, halfOpen
}

// Connections returns the number of the guest's TCP connections that count against the limit.
func (n *Network) Connections() int { return len(n.tcp) }

// Endpoints returns the number of TCP connections that have memory, except for closed ones.
func (n *Network) Endpoints() int {
	count := 0
	for _, e := range n.stack.RegisteredEndpoints() {
		endpoint, ok := e.(*tcp.Endpoint)
		if !ok {
			continue
		}
		switch endpoint.EndpointState() {
		case tcp.StateListen, tcp.StateTimeWait, tcp.StateClose, tcp.StateError:
		default:
			count++
		}
	}
	return count
}
