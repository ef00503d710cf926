package network

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
)

var (
	testMAC   = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	otherMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02}
	broadcast = net.HardwareAddr(header.EthernetBroadcastAddress)
)

func ethernetFrame(from, to net.HardwareAddr, protocol tcpip.NetworkProtocolNumber, payload []byte) []byte {
	frame := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(payload))
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(from), DstAddr: tcpip.LinkAddress(to), Type: protocol})
	return append(frame, payload...)
}

func arpPacket(op header.ARPOp, mac net.HardwareAddr, sender, target string) []byte {
	packet := header.ARP(make([]byte, header.ARPSize))
	packet.SetIPv4OverEthernet()
	packet.SetOp(op)
	copy(packet.HardwareAddressSender(), mac)
	copy(packet.ProtocolAddressSender(), net.ParseIP(sender).To4())
	copy(packet.ProtocolAddressTarget(), net.ParseIP(target).To4())
	return packet
}

func ipv4Packet(from, to string, protocol tcpip.TransportProtocolNumber, port uint16, change func(header.IPv4)) []byte {
	packet := make([]byte, header.IPv4MinimumSize+header.UDPMinimumSize)
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(protocol),
		SrcAddr: tcpip.AddrFrom4Slice(net.ParseIP(from).To4()), DstAddr: tcpip.AddrFrom4Slice(net.ParseIP(to).To4()),
	})
	header.UDP(packet[header.IPv4MinimumSize:]).Encode(&header.UDPFields{SrcPort: 68, DstPort: port, Length: header.UDPMinimumSize})
	if change != nil {
		change(ip)
	}
	return packet
}

func TestFilter(t *testing.T) {
	const any, limited = "0.0.0.0", "255.255.255.255"
	guest, gateway := Guest.String(), Gateway.String()
	ip := func(from, to string, protocol tcpip.TransportProtocolNumber, port uint16) []byte {
		return ethernetFrame(testMAC, gatewayMAC, header.IPv4ProtocolNumber, ipv4Packet(from, to, protocol, port, nil))
	}
	changed := func(change func(header.IPv4)) []byte {
		return ethernetFrame(testMAC, gatewayMAC, header.IPv4ProtocolNumber, ipv4Packet(guest, "140.82.121.4", header.UDPProtocolNumber, 53, change))
	}
	dhcp := ipv4Packet(any, limited, header.UDPProtocolNumber, 67, nil)
	tests := map[string]struct {
		frame []byte
		want  bool
	}{
		"TCP":                         {ip(guest, "140.82.121.4", header.TCPProtocolNumber, 80), true},
		"UDP":                         {ip(guest, "140.82.121.4", header.UDPProtocolNumber, 80), true},
		"a fragment":                  {changed(func(p header.IPv4) { p.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }), true},
		"ping of the gateway":         {ip(guest, gateway, header.ICMPv4ProtocolNumber, 0), true},
		"ping of another machine":     {ip(guest, "140.82.121.4", header.ICMPv4ProtocolNumber, 0), false},
		"IGMP":                        {ip(guest, "140.82.121.4", header.IGMPProtocolNumber, 0), false},
		"IPv4 in IPv4":                {ip(guest, "140.82.121.4", 4, 0), false},
		"IPv6 in IPv4":                {ip(guest, "140.82.121.4", 41, 0), false},
		"another sender":              {ip("10.0.0.1", "140.82.121.4", header.TCPProtocolNumber, 80), false},
		"the gateway as the sender":   {ip(gateway, "140.82.121.4", header.TCPProtocolNumber, 80), false},
		"no sender":                   {ip(any, "140.82.121.4", header.TCPProtocolNumber, 80), false},
		"multicast":                   {ip(guest, "224.0.0.251", header.UDPProtocolNumber, 5353), false},
		"broadcast of the network":    {ip(guest, "192.168.127.3", header.UDPProtocolNumber, 67), false},
		"broadcast":                   {ip(guest, limited, header.UDPProtocolNumber, 80), false},
		"DHCP":                        {ethernetFrame(testMAC, broadcast, header.IPv4ProtocolNumber, dhcp), true},
		"DHCP renewal by broadcast":   {ip(guest, limited, header.UDPProtocolNumber, 67), true},
		"DHCP of another machine":     {ip("10.0.0.1", limited, header.UDPProtocolNumber, 67), false},
		"DHCP over TCP":               {ip(any, limited, header.TCPProtocolNumber, 67), false},
		"DHCP in fragments":           {ethernetFrame(testMAC, broadcast, header.IPv4ProtocolNumber, ipv4Packet(any, limited, header.UDPProtocolNumber, 67, func(p header.IPv4) { p.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) })), false},
		"unicast to all":              {ethernetFrame(testMAC, broadcast, header.IPv4ProtocolNumber, ipv4Packet(guest, gateway, header.UDPProtocolNumber, 53, nil)), false},
		"options":                     {changed(func(p header.IPv4) { p.SetHeaderLength(24) }), false},
		"a long length":               {changed(func(p header.IPv4) { p.SetTotalLength(1000) }), false},
		"a short length":              {changed(func(p header.IPv4) { p.SetTotalLength(8) }), false},
		"another Ethernet address":    {ethernetFrame(otherMAC, gatewayMAC, header.IPv4ProtocolNumber, dhcp), false},
		"another Ethernet target":     {ethernetFrame(testMAC, otherMAC, header.IPv4ProtocolNumber, dhcp), false},
		"ARP":                         {ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPRequest, testMAC, guest, gateway)), true},
		"ARP probe of the gateway":    {ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPRequest, testMAC, any, gateway)), true},
		"ARP probe of itself":         {ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPRequest, testMAC, any, guest)), false},
		"ARP for another machine":     {ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPRequest, testMAC, guest, "192.168.1.1")), false},
		"ARP spoofing of the gateway": {ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPReply, testMAC, gateway, gateway)), false},
		"ARP spoofing of a neighbor":  {ethernetFrame(testMAC, gatewayMAC, arp.ProtocolNumber, arpPacket(header.ARPReply, otherMAC, guest, gateway)), false},
		"IPv6 router advertisement":   {ethernetFrame(testMAC, broadcast, header.IPv6ProtocolNumber, make([]byte, 64)), false},
		"VLAN":                        {ethernetFrame(testMAC, gatewayMAC, 0x8100, dhcp), false},
		"another protocol":            {ethernetFrame(testMAC, gatewayMAC, 0x88cc, make([]byte, 64)), false},
		"nothing":                     {nil, false},
		"a short frame":               {make([]byte, 13), false},
		"an empty packet":             {ethernetFrame(testMAC, gatewayMAC, header.IPv4ProtocolNumber, nil), false},
		"an empty ARP packet":         {ethernetFrame(testMAC, gatewayMAC, arp.ProtocolNumber, nil), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, filter{guest: tcpip.LinkAddress(testMAC)}.admit(tt.frame))
		})
	}
}

// The filter reads frames of any content.
func FuzzFilter(f *testing.F) {
	f.Add(ethernetFrame(testMAC, broadcast, arp.ProtocolNumber, arpPacket(header.ARPRequest, testMAC, Guest.String(), Gateway.String())))
	f.Add(ethernetFrame(testMAC, gatewayMAC, header.IPv4ProtocolNumber, ipv4Packet(Guest.String(), "140.82.121.4", header.UDPProtocolNumber, 53, nil)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		admitted := filter{guest: tcpip.LinkAddress(testMAC)}.admit(frame)
		assert.Equal(t, before, frame)
		if admitted && !bytes.Equal(frame[6:12], testMAC) {
			t.Fatal("a frame of another machine is admitted")
		}
	})
}
