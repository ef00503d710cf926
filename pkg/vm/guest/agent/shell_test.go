package agent

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSupplementaryGroups(t *testing.T) {
	var many []uint32
	for id := range uint32(20) {
		many = append(many, 100+id)
	}
	few := []uint32{12, 20, 61, 20}
	for _, system := range []string{"darwin", "linux"} {
		assert.Equal(t, []uint32{20, 12, 61}, supplementary(system, 20, few), "the primary group first, each once")
		assert.Equal(t, []uint32{20}, supplementary(system, 20, nil))
	}
	assert.Len(t, supplementary("linux", 20, many), 21)
	kept := supplementary("darwin", 20, many)
	assert.Equal(t, append([]uint32{20}, many[:15]...), kept, "setgroups takes 16")
	assert.Len(t, supplementary("darwin", 119, many), 16)
	assert.Equal(t, uint32(119), supplementary("darwin", 119, many)[0], "the primary group is never the one that is left out")
}

func TestLoginShell(t *testing.T) {
	assert.Equal(t, "/bin/zsh", shellOfRecord("UserShell: /bin/zsh\n"))
	assert.Empty(t, shellOfRecord("No such key: UserShell\n"))
	const passwd = "root:x:0:0:root:/root:/bin/bash\nadmin:x:501:20::/Users/admin:/bin/zsh\nbroken:x\n"
	assert.Equal(t, "/bin/zsh", shellOfPasswd(passwd, "admin"))
	assert.Empty(t, shellOfPasswd(passwd, "broken"))
	assert.Empty(t, shellOfPasswd(passwd, "nobody"))
}

func TestAddressOfTheDefaultRouteIsFirst(t *testing.T) {
	vpn, lan, other := netip.MustParseAddr("10.8.0.2"), netip.MustParseAddr("192.168.64.7"), netip.MustParseAddr("192.168.64.8")
	assert.Equal(t, []netip.Addr{lan, vpn, other}, first([]netip.Addr{vpn, lan, other}, lan))
	assert.Equal(t, []netip.Addr{vpn, lan}, first([]netip.Addr{vpn, lan}, netip.Addr{}))
}
