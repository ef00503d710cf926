// Package netguest is a guest of package network without a virtual machine: a network stack on the
// guest's end of the link. Simulated guests and tests use it.
package netguest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"macrack.io/macrack/pkg/vm/network/internal/link"
)

const (
	nic = 1
	// dhcpTries and dhcpTimeout are those of each message.
	dhcpTries   = 5
	dhcpTimeout = time.Second
)

// unconfigured is the address 0.0.0.0, from which a guest without an address sends DHCP messages.
var unconfigured = tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: header.IPv4Any.WithPrefix()}

// Guest is the network stack of a guest.
type Guest struct {
	stack *stack.Stack
	conn  *net.UnixConn
	mac   net.HardwareAddr
	lease *dhcpv4.DHCPv4
}

// New attaches a guest with the Ethernet address mac to the end of a link. It has no address yet.
func New(device *os.File, mac net.HardwareAddr) (*Guest, error) {
	conn, err := link.Conn(device)
	if err != nil {
		return nil, err
	}
	wire, endpoint, err := link.New(conn, mac)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	g := &Guest{conn: conn, mac: mac, stack: stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})}
	if failed := g.stack.CreateNIC(nic, endpoint); failed != nil {
		g.Close()
		return nil, errors.New(failed.String())
	}
	g.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	if failed := g.stack.AddProtocolAddress(nic, unconfigured, stack.AddressProperties{}); failed != nil {
		g.Close()
		return nil, errors.New(failed.String())
	}
	go func() { _ = wire.Run(func([]byte) bool { return true }) }()
	return g, nil
}

// Close shuts the guest's stack down.
func (g *Guest) Close() {
	_ = g.conn.Close()
	g.stack.Close()
}

// Send sends an Ethernet frame.
func (g *Guest) Send(frame []byte) error {
	_, err := g.conn.Write(frame)
	return err
}

// Configure leases an address, and uses it.
func (g *Guest) Configure(ctx context.Context) (netip.Addr, error) {
	discover, err := dhcpv4.NewDiscovery(g.mac)
	if err != nil {
		return netip.Addr{}, err
	}
	offer, err := g.Exchange(ctx, discover)
	if err != nil {
		return netip.Addr{}, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		return netip.Addr{}, err
	}
	ack, err := g.Exchange(ctx, request)
	if err != nil {
		return netip.Addr{}, err
	}
	if ack.MessageType() != dhcpv4.MessageTypeAck || len(ack.Router()) != 1 {
		return netip.Addr{}, fmt.Errorf("the DHCP server answered %s", ack.Summary())
	}
	g.lease = ack
	address, _ := netip.AddrFromSlice(ack.YourIPAddr.To4())
	bits, _ := ack.SubnetMask().Size()
	return address, g.use(netip.PrefixFrom(address, bits), ack.Router()[0])
}

func (g *Guest) use(address netip.Prefix, router net.IP) error {
	if failed := g.stack.RemoveAddress(nic, header.IPv4Any); failed != nil {
		return errors.New(failed.String())
	}
	if failed := g.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(address.Addr().As4()), PrefixLen: address.Bits()},
	}, stack.AddressProperties{}); failed != nil {
		return errors.New(failed.String())
	}
	g.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, Gateway: tcpip.AddrFrom4Slice(router.To4()), NIC: nic}})
	return nil
}

// Lease returns the answer of the DHCP server.
func (g *Guest) Lease() *dhcpv4.DHCPv4 { return g.lease }

// Exchange sends a DHCP message and returns the answer. It repeats the message.
func (g *Guest) Exchange(ctx context.Context, message *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	var queue waiter.Queue
	endpoint, failed := g.stack.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if failed != nil {
		return nil, errors.New(failed.String())
	}
	endpoint.SocketOptions().SetBroadcast(true)
	if failed := endpoint.Bind(tcpip.FullAddress{NIC: nic, Port: dhcpv4.ClientPort}); failed != nil {
		endpoint.Close()
		return nil, errors.New(failed.String())
	}
	conn := gonet.NewUDPConn(&queue, endpoint)
	defer func() { _ = conn.Close() }()
	answers := make(chan *dhcpv4.DHCPv4, 1)
	go func() {
		buffer := make([]byte, link.MTU)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			answer, err := dhcpv4.FromBytes(buffer[:n])
			if err == nil && answer.TransactionID == message.TransactionID {
				select {
				case answers <- answer:
				default:
				}
				return
			}
		}
	}()
	for range dhcpTries {
		if _, err := conn.WriteTo(message.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
			return nil, err
		}
		select {
		case answer := <-answers:
			return answer, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dhcpTimeout):
		}
	}
	return nil, errors.New("the DHCP server does not answer")
}

// DialContext connects to an address, such as 192.0.2.1:80. The network is tcp or udp.
func (g *Guest) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	full := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}
	if network == "udp" {
		return gonet.DialUDP(g.stack, nil, &full, ipv4.ProtocolNumber)
	}
	return gonet.DialContextTCP(ctx, g.stack, full, ipv4.ProtocolNumber)
}

// Listen listens on a TCP port of all addresses of the guest.
func (g *Guest) Listen(port uint16) (net.Listener, error) {
	return gonet.ListenTCP(g.stack, tcpip.FullAddress{NIC: nic, Port: port}, ipv4.ProtocolNumber)
}
