package netaddr

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var mac = net.HardwareAddr{0x5e, 0x01, 0x23, 0x00, 0x67, 0x89}

const leases = `{
	name=old
	ip_address=192.168.64.9
	hw_address=1,5e:1:23:0:67:89
	identifier=1,5e:1:23:0:67:89
	lease=0x60000000
}
{
	name=other
	ip_address=192.168.64.3
	hw_address=1,5e:1:23:0:67:88
	lease=0x70000000
}
{
	name=new
	ip_address=192.168.64.2
	hw_address=1,5e:1:23:0:67:89
	lease=0x70000000
}
{
	name=truncated
	ip_address=192.168.64.7
	hw_address=1,5e:1:23:0:67:89
`

func TestFromDHCPLeases(t *testing.T) {
	now := time.Unix(0x5fffffff, 0)
	address, ok := FromDHCPLeases(strings.NewReader(leases), mac, now)
	assert.True(t, ok)
	assert.Equal(t, "192.168.64.2", address.String())
	_, ok = FromDHCPLeases(strings.NewReader(leases), mac, time.Unix(0x70000000, 0))
	assert.False(t, ok, "expired leases have no owner")
	_, ok = FromDHCPLeases(strings.NewReader(leases), net.HardwareAddr{2, 0, 0, 0, 0, 1}, now)
	assert.False(t, ok)
}

func TestFromARP(t *testing.T) {
	const table = `? (192.168.64.1) at 16:98:77:a2:1:64 on bridge100 ifscope permanent [bridge]
? (192.168.64.4) at (incomplete) on bridge100 ifscope [bridge]
? (192.168.64.5) at 5e:1:23:0:67:89 on bridge100 ifscope [bridge]
`
	address, ok := FromARP(strings.NewReader(table), mac)
	assert.True(t, ok)
	assert.Equal(t, "192.168.64.5", address.String())
	_, ok = FromARP(strings.NewReader(table), net.HardwareAddr{2, 0, 0, 0, 0, 1})
	assert.False(t, ok)
}
