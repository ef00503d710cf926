package network

import (
	"errors"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"macrack.io/macrack/pkg/vm/network/internal/link"
)

const (
	leaseTime = 24 * time.Hour
	// maxMessage is the limit of a DHCP message, in bytes.
	maxMessage = 1500
	// dhcpRate and dhcpBurst limit the answers a second.
	dhcpRate  = 10
	dhcpBurst = 50
	// dhcpClientPort is the port of the guest. The answers are broadcast, because the guest may not
	// have an address yet.
	dhcpClientPort = 68
)

// serveDHCP starts the DHCP server on the gateway. Its only address is that of the guest, so there
// is nothing to exhaust.
func (n *Network) serveDHCP() error {
	var queue waiter.Queue
	endpoint, failed := n.stack.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if failed != nil {
		return errors.New(failed.String())
	}
	endpoint.SocketOptions().SetBroadcast(true)
	if failed := endpoint.Bind(tcpip.FullAddress{NIC: nic, Port: dhcpServerPort}); failed != nil {
		endpoint.Close()
		return errors.New(failed.String())
	}
	conn := gonet.NewUDPConn(&queue, endpoint)
	go func() {
		<-n.ctx.Done()
		_ = conn.Close()
	}()
	go func() {
		limit := rate.NewLimiter(dhcpRate, dhcpBurst)
		message := make([]byte, maxMessage)
		for {
			size, _, err := conn.ReadFrom(message)
			if err != nil {
				return
			}
			if !limit.AllowN(n.config.Clock.Now(), 1) {
				continue
			}
			if reply := answerDHCP(message[:size], n.config.MAC); reply != nil {
				_, err := conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpClientPort})
				if err == nil && reply.MessageType() == dhcpv4.MessageTypeAck && reply.YourIPAddr.Equal(Guest.AsSlice()) {
					n.leased.Store(true)
					if n.config.Leased != nil {
						n.config.Leased()
					}
				}
			}
		}
	}()
	return nil
}

// answerDHCP returns the reply to a message of the guest; nil for messages that have none.
func answerDHCP(message []byte, mac net.HardwareAddr) *dhcpv4.DHCPv4 {
	request, err := dhcpv4.FromBytes(message)
	if err != nil || request.OpCode != dhcpv4.OpcodeBootRequest || request.ClientHWAddr.String() != mac.String() {
		return nil
	}
	gateway := Gateway.AsSlice()
	reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gateway)))
	if err != nil {
		return nil
	}
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeOffer))
		reply.YourIPAddr = Guest.AsSlice()
	case dhcpv4.MessageTypeRequest:
		if server := request.ServerIdentifier(); server != nil && !server.Equal(gateway) {
			return nil // the guest has chosen another server
		}
		if wanted := wantedAddress(request); !wanted.Equal(Guest.AsSlice()) {
			// An image may remember an address of another network.
			reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
			return reply
		}
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
		reply.YourIPAddr = Guest.AsSlice()
	case dhcpv4.MessageTypeInform:
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
	default:
		return nil
	}
	if request.MessageType() != dhcpv4.MessageTypeInform {
		reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(leaseTime))
	}
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(Subnet.Bits(), 32)))
	reply.UpdateOption(dhcpv4.OptRouter(gateway))
	reply.UpdateOption(dhcpv4.OptDNS(gateway))
	reply.UpdateOption(dhcpv4.Option{Code: dhcpv4.OptionInterfaceMTU, Value: dhcpv4.Uint16(link.MTU)})
	return reply
}

func wantedAddress(request *dhcpv4.DHCPv4) net.IP {
	if wanted := request.RequestedIPAddress(); wanted != nil {
		return wanted
	}
	return request.ClientIPAddr
}
