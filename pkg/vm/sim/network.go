package sim

import (
	"context"
	"io"
	"net"
	"sync"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/network/netguest"
	"macrack.io/macrack/pkg/vm/runner"
)

// services are the TCP ports of a simulated guest. Each greets, and then returns what it receives.
var services = map[uint16]string{
	22:   "SSH-2.0-macrack-simulated\r\n",
	5900: "RFB 003.889\n",
}

// guestNetwork is the network interface of a simulated guest. A nil one does nothing.
type guestNetwork struct {
	guest  *netguest.Guest
	booted sync.Once
	stop   context.CancelFunc
	ctx    context.Context
}

func newGuestNetwork(spec *contract.Spec, device runner.Device) (*guestNetwork, error) {
	mac, err := net.ParseMAC(spec.MACAddress)
	if err != nil {
		return nil, err
	}
	file, err := device()
	if err != nil {
		return nil, err
	}
	guest, err := netguest.New(file, mac)
	if err != nil {
		return nil, err
	}
	g := &guestNetwork{guest: guest}
	g.ctx, g.stop = context.WithCancel(context.Background())
	return g, nil
}

// boot leases an address and starts the services, unless an earlier boot did.
func (g *guestNetwork) boot() {
	if g != nil {
		g.booted.Do(func() { go g.configure() })
	}
}

func (g *guestNetwork) configure() {
	if _, err := g.guest.Configure(g.ctx); err != nil {
		if g.ctx.Err() == nil {
			klog.ErrorS(err, "Simulated guest has no address")
		}
		return
	}
	for port, greeting := range services {
		listener, err := g.guest.Listen(port)
		if err != nil {
			klog.ErrorS(err, "Simulated guest does not listen", "port", port)
			continue
		}
		go greet(listener, greeting)
	}
}

func greet(listener net.Listener, greeting string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if _, err := io.WriteString(conn, greeting); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
	}
}

func (g *guestNetwork) halt() {
	if g != nil {
		g.stop()
		g.guest.Close()
	}
}
