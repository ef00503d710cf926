package network

import (
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
)

// The network of a guest. Each guest has its own stack and link, so the addresses of all guests are
// the same.
var (
	// Subnet is the network of a guest.
	Subnet = netip.MustParsePrefix("192.168.127.0/30")
	// Gateway is the address of the gateway, which is the DHCP and DNS server.
	Gateway = netip.MustParseAddr("192.168.127.1")
	// Guest is the address of the guest.
	Guest = netip.MustParseAddr("192.168.127.2")

	subnetBroadcast = netip.MustParseAddr("192.168.127.3")
	gatewayMAC      = net.HardwareAddr{0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd}

	gatewayAddress = tcpipAddress(Gateway)
	guestAddress   = tcpipAddress(Guest)
)

const (
	dhcpServerPort = 67
	dnsPort        = 53
	ntpPort        = 123
)

func tcpipAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

// filter admits the frames that a guest may send. Others, such as IPv6 with its router
// advertisements, and frames with the address of another machine, never reach the stack.
type filter struct {
	guest tcpip.LinkAddress
}

func (f filter) admit(frame []byte) bool {
	if len(frame) < header.EthernetMinimumSize {
		return false
	}
	ethernet, payload := header.Ethernet(frame), frame[header.EthernetMinimumSize:]
	if ethernet.SourceAddress() != f.guest {
		return false
	}
	broadcast := ethernet.DestinationAddress() == header.EthernetBroadcastAddress
	if !broadcast && ethernet.DestinationAddress() != tcpip.LinkAddress(gatewayMAC) {
		return false
	}
	switch ethernet.Type() {
	case arp.ProtocolNumber:
		return f.admitARP(payload)
	case header.IPv4ProtocolNumber:
		return admitIPv4(payload, broadcast)
	default:
		return false
	}
}

// admitARP admits ARP of the guest with the gateway only. The stack would answer a probe for any
// address.
func (f filter) admitARP(payload []byte) bool {
	if len(payload) < header.ARPSize {
		return false
	}
	packet := header.ARP(payload[:header.ARPSize])
	if !packet.IsValid() || tcpip.LinkAddress(packet.HardwareAddressSender()) != f.guest {
		return false
	}
	sender := tcpip.AddrFrom4Slice(packet.ProtocolAddressSender())
	return (sender == guestAddress || sender.Unspecified()) && tcpip.AddrFrom4Slice(packet.ProtocolAddressTarget()) == gatewayAddress
}

func admitIPv4(payload []byte, broadcast bool) bool {
	packet := header.IPv4(payload)
	// Options, such as source routes, are of no use in this network.
	if !packet.IsValid(len(payload)) || packet.HeaderLength() != header.IPv4MinimumSize {
		return false
	}
	from, to := packet.SourceAddress(), packet.DestinationAddress()
	if to == header.IPv4Broadcast || from.Unspecified() {
		return (from.Unspecified() || from == guestAddress) && isDHCP(packet)
	}
	if broadcast || from != guestAddress || header.IsV4MulticastAddress(to) || to == tcpipAddress(subnetBroadcast) {
		return false
	}
	switch packet.TransportProtocol() {
	case header.TCPProtocolNumber, header.UDPProtocolNumber:
		return true
	case header.ICMPv4ProtocolNumber:
		return to == gatewayAddress // the stack would answer for every address
	default:
		return false
	}
}

func isDHCP(packet header.IPv4) bool {
	datagram := packet.Payload()
	return packet.TransportProtocol() == header.UDPProtocolNumber && !packet.More() && packet.FragmentOffset() == 0 &&
		len(datagram) >= header.UDPMinimumSize && header.UDP(datagram).DestinationPort() == dhcpServerPort
}
