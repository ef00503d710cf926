package network

import (
	"net"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnswerDHCP(t *testing.T) {
	request := func(kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(testMAC), dhcpv4.WithMessageType(kind)}, modifiers...)...)
		require.NoError(t, err)
		return m
	}
	wants := func(address string) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(address)))
	}
	tests := map[string]struct {
		message *dhcpv4.DHCPv4
		want    dhcpv4.MessageType // none: no answer
		address string
	}{
		"discover":                 {request(dhcpv4.MessageTypeDiscover), dhcpv4.MessageTypeOffer, Guest.String()},
		"discover another address": {request(dhcpv4.MessageTypeDiscover, wants("10.0.0.1")), dhcpv4.MessageTypeOffer, Guest.String()},
		"request":                  {request(dhcpv4.MessageTypeRequest, wants(Guest.String())), dhcpv4.MessageTypeAck, Guest.String()},
		"renewal":                  {request(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(Guest.AsSlice())), dhcpv4.MessageTypeAck, Guest.String()},
		"an old address":           {request(dhcpv4.MessageTypeRequest, wants("192.168.64.7")), dhcpv4.MessageTypeNak, "0.0.0.0"},
		"no address":               {request(dhcpv4.MessageTypeRequest), dhcpv4.MessageTypeNak, "0.0.0.0"},
		"another server":           {request(dhcpv4.MessageTypeRequest, wants(Guest.String()), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, 1)))), dhcpv4.MessageTypeNone, ""},
		"inform":                   {request(dhcpv4.MessageTypeInform, dhcpv4.WithClientIP(Guest.AsSlice())), dhcpv4.MessageTypeAck, "0.0.0.0"},
		"release":                  {request(dhcpv4.MessageTypeRelease), dhcpv4.MessageTypeNone, ""},
		"decline":                  {request(dhcpv4.MessageTypeDecline), dhcpv4.MessageTypeNone, ""},
		"another machine":          {request(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(otherMAC)), dhcpv4.MessageTypeNone, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			reply := answerDHCP(tt.message.ToBytes(), testMAC)
			if tt.want == dhcpv4.MessageTypeNone {
				assert.Nil(t, reply)
				return
			}
			require.NotNil(t, reply)
			assert.Equal(t, tt.want, reply.MessageType())
			assert.Equal(t, tt.address, reply.YourIPAddr.String())
			assert.Equal(t, Gateway.String(), reply.ServerIdentifier().String())
		})
	}
}

func FuzzAnswerDHCP(f *testing.F) {
	discover, err := dhcpv4.NewDiscovery(testMAC)
	require.NoError(f, err)
	f.Add(discover.ToBytes())
	f.Fuzz(func(t *testing.T, message []byte) {
		if reply := answerDHCP(message, testMAC); reply != nil {
			assert.LessOrEqual(t, len(reply.ToBytes()), maxMessage)
		}
	})
}
