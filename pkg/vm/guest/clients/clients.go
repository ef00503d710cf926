// Package clients creates clients of the agents that guests can have.
package clients

import (
	"context"
	"net"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/tart"
)

// Kinds are the kinds of agents, in the order of preference: MacRack's own knows more.
var Kinds = []contract.GuestAgent{contract.GuestAgentMacRack, contract.GuestAgentTart}

// Port returns the vsock port of an agent. The kind is empty while it is unknown, and in the state
// of runners that know only MacRack's.
func Port(kind contract.GuestAgent) uint32 {
	if kind == contract.GuestAgentTart {
		return tart.Port
	}
	return guest.Port
}

// New returns a client of an agent, which dial reaches.
func New(kind contract.GuestAgent, dial func(context.Context) (net.Conn, error)) (guest.Agent, error) {
	if kind == contract.GuestAgentTart {
		return tart.NewClient(dial)
	}
	return guest.NewClient(dial)
}
