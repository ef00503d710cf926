package egress

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func list(t *testing.T, cidrs, names []string) AllowList {
	t.Helper()
	l, err := ParseAllowList(cidrs, names)
	require.NoError(t, err)
	return l
}

func TestCheck(t *testing.T) {
	const (
		macItself = "an address of the Mac itself; no setting allows it"
		isPrivate = "a private address; ask the operator to allow it in spec.guestNetwork of the RackConfig and in the InstanceClass"
		noIPv6    = "not an IPv4 address; isolated guests have no IPv6"
		metadata  = "an address of cloud metadata; no setting allows it"
		linkLocal = "a link-local address; no setting allows it"
	)
	host := []netip.Addr{netip.MustParseAddr("17.1.2.3"), netip.MustParseAddr("10.7.0.5"), netip.MustParseAddr("::ffff:17.1.2.4")}
	everything := []string{"0.0.0.0/0"}
	tests := map[string]struct {
		to    string
		cidrs []string
		names []string // of the address and of the list
		want  string   // empty: allowed
	}{
		"public":                               {to: "140.82.121.4"},
		"public, mapped":                       {to: "::ffff:140.82.121.4"},
		"10/8":                                 {to: "10.0.0.1", want: isPrivate},
		"172.16/12":                            {to: "172.31.255.255", want: isPrivate},
		"after 172.16/12":                      {to: "172.32.0.0"},
		"192.168/16":                           {to: "192.168.1.1", want: isPrivate},
		"private, mapped":                      {to: "::ffff:10.0.0.1", want: isPrivate},
		"private, by the list":                 {to: "10.20.3.4", cidrs: []string{"10.20.0.0/16"}},
		"private, mapped, by the list":         {to: "::ffff:10.20.3.4", cidrs: []string{"10.20.0.0/16"}},
		"private, outside the list":            {to: "10.21.3.4", cidrs: []string{"10.20.0.0/16"}, want: isPrivate},
		"private, by name":                     {to: "10.21.3.4", names: []string{"git.corp"}},
		"carrier-grade NAT":                    {to: "100.64.0.1", want: "carrier-grade NAT"},
		"carrier-grade NAT, by the list":       {to: "100.64.0.1", cidrs: []string{"100.64.0.0/10"}},
		"after carrier-grade NAT":              {to: "100.128.0.1"},
		"loopback":                             {to: "127.0.0.1", want: macItself},
		"loopback, another address":            {to: "127.255.0.9", want: macItself},
		"loopback, by the list":                {to: "127.0.0.1", cidrs: everything, want: macItself},
		"loopback, by name":                    {to: "127.0.0.1", names: []string{"git.corp"}, want: macItself},
		"loopback, mapped":                     {to: "::ffff:127.0.0.1", cidrs: everything, want: macItself},
		"unspecified":                          {to: "0.0.0.0", cidrs: everything, want: macItself},
		"the Mac's public address":             {to: "17.1.2.3", cidrs: everything, want: macItself},
		"the Mac's mapped address":             {to: "17.1.2.4", want: macItself},
		"a public neighbor of the Mac":         {to: "17.1.2.5"},
		"the Mac's private address":            {to: "10.7.0.5", cidrs: everything, want: macItself},
		"the Mac's private address, by name":   {to: "10.7.0.5", names: []string{"git.corp"}, want: macItself},
		"metadata":                             {to: "169.254.169.254", want: linkLocal},
		"metadata, by the list":                {to: "169.254.169.254", cidrs: everything, want: linkLocal},
		"metadata, by name":                    {to: "169.254.169.254", names: []string{"git.corp"}, want: linkLocal},
		"metadata of Azure":                    {to: "168.63.129.16", cidrs: everything, want: metadata},
		"metadata of Alibaba":                  {to: "100.100.100.200", cidrs: everything, want: metadata},
		"metadata of Oracle":                   {to: "192.0.0.192", cidrs: everything, want: metadata},
		"multicast":                            {to: "224.0.0.251", cidrs: everything, want: "a multicast address"},
		"broadcast":                            {to: "255.255.255.255", cidrs: everything, want: "a reserved or broadcast address"},
		"reserved":                             {to: "240.0.0.1", cidrs: everything, want: "a reserved or broadcast address"},
		"the gateway":                          {to: "192.168.127.1", cidrs: everything, want: "the guest's own network"},
		"documentation":                        {to: "203.0.113.9", want: "for documentation"},
		"benchmarks":                           {to: "198.19.0.1", want: "for benchmarks"},
		"everything private":                   {to: "192.168.1.1", cidrs: everything},
		"IPv6":                                 {to: "2606:4700::1", cidrs: everything, want: noIPv6},
		"IPv6 loopback":                        {to: "::1", cidrs: everything, want: noIPv6},
		"IPv6 unspecified":                     {to: "::", cidrs: everything, want: noIPv6},
		"unique local":                         {to: "fd12::1", cidrs: everything, want: noIPv6},
		"IPv6 link-local":                      {to: "fe80::1", cidrs: everything, want: noIPv6},
		"IPv6 multicast":                       {to: "ff02::1", cidrs: everything, want: noIPv6},
		"IPv6 metadata":                        {to: "fd00:ec2::254", cidrs: everything, want: noIPv6},
		"NAT64":                                {to: "64:ff9b::10.0.0.1", cidrs: everything, want: noIPv6},
		"local NAT64":                          {to: "64:ff9b:1::10.0.0.1", cidrs: everything, want: noIPv6},
		"IPv4-compatible":                      {to: "::10.0.0.1", cidrs: everything, want: noIPv6},
		"6to4":                                 {to: "2002:a00:1::1", cidrs: everything, want: noIPv6},
		"a name of the answer that is no name": {to: "10.21.3.4", names: []string{}, want: isPrivate},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := Policy{Allowed: list(t, tt.cidrs, tt.names), Guest: netip.MustParsePrefix("192.168.127.0/24")}
			err := p.Check(Destination{Address: netip.MustParseAddr(tt.to), Names: tt.names}, host)
			if tt.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, netip.MustParseAddr(tt.to).String()+" is ")
			assert.ErrorContains(t, err, tt.want)
		})
	}
}

// The name of an answer is compared with the list at each connection.
func TestNameOutsideTheList(t *testing.T) {
	p := Policy{Allowed: list(t, nil, []string{"git.corp"})}
	to := Destination{Address: netip.MustParseAddr("10.0.0.1"), Names: []string{"evil.example", "git.corp.evil.example"}}
	assert.ErrorContains(t, p.Check(to, nil), "a private address")
	to.Names = append(to.Names, "GIT.corp.")
	assert.NoError(t, p.Check(to, nil))
}

func TestZeroAddress(t *testing.T) {
	assert.Error(t, (&Policy{}).Check(Destination{}, nil))
}

// No address leads to the Mac, whatever the list allows and the resolver answers.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1}, "git.corp")
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, "")
	f.Fuzz(func(t *testing.T, address []byte, name string) {
		to, ok := netip.AddrFromSlice(address)
		if !ok {
			return
		}
		p := Policy{Allowed: AllowList{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Names: []string{name}}, Guest: netip.MustParsePrefix("192.168.127.0/24")}
		own := netip.MustParseAddr("17.1.2.3")
		if p.Check(Destination{Address: to, Names: []string{name}}, []netip.Addr{own}) != nil {
			return
		}
		plain := to.Unmap()
		if !plain.Is4() || plain.IsLoopback() || plain.IsUnspecified() || plain.IsMulticast() || plain.IsLinkLocalUnicast() || plain == own {
			t.Fatalf("%s is allowed", to)
		}
	})
}
