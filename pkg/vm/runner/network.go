package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules/egress"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/network"
)

// Device opens the isolated network of a VM and returns the guest's end: a connected datagram
// socket that carries Ethernet frames. It stays open until the VM has ended. A backend calls it at
// most once.
type Device func() (*os.File, error)

// openNetwork is the Device of the VM.
func (r *runner) openNetwork() (*os.File, error) {
	mac, err := net.ParseMAC(r.spec.MACAddress)
	if err != nil {
		return nil, err
	}
	allowed, err := egress.ParseAllowList(r.spec.Network.AllowedCIDRs, r.spec.Network.AllowedNames)
	if err != nil {
		return nil, fmt.Errorf("allowed destinations: %w", err)
	}
	r.network, err = network.New(network.Config{
		MAC: mac, Allowed: allowed, Clock: r.clock,
		Refused: func(err error) { r.console.Printf("the network refused a connection: %v", err) },
		Leased:  func() { r.found(leasedAddress(r.clock)) },
	})
	if err != nil {
		return nil, fmt.Errorf("isolated network: %w", err)
	}
	r.update(func(s *contract.State) { s.Isolated = true })
	return r.network.Device(), nil
}

func (r *runner) closeNetwork() {
	if r.network != nil {
		r.network.Close()
	}
}

// findAddress returns the address of the guest; nil if it is unknown.
func (r *runner) findAddress(ctx context.Context) *contract.Address {
	if r.network == nil {
		return r.machine.FindAddress(ctx)
	}
	if !r.network.Leased() {
		return nil
	}
	address := leasedAddress(r.clock)
	return &address
}

func leasedAddress(clk clock.PassiveClock) contract.Address {
	return contract.Address{Value: network.Guest.String(), Source: contract.AddressFromDHCPLease, ObservedAt: clk.Now()}
}

var errNotIsolated = errors.New("the virtual machine has no isolated network; its ports can be reached only through a guest agent")

// Dial implements contract.Runner.
func (r *runner) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if r.network == nil {
		return nil, errNotIsolated
	}
	return r.network.Dial(ctx, port)
}
