package egress

import (
	"fmt"
	"net/netip"
	"slices"
)

// network is a range of addresses, and what it is.
type network struct {
	cidr netip.Prefix
	what string
}

// never are the networks that nothing allows.
var never = []network{
	{netip.MustParsePrefix("0.0.0.0/8"), "an address of the Mac itself"},
	{netip.MustParsePrefix("127.0.0.0/8"), "an address of the Mac itself"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved or broadcast address"},
	// Metadata of clouds outside the link-local range: Alibaba, Azure, and Oracle.
	{netip.MustParsePrefix("100.100.100.200/32"), "an address of cloud metadata"},
	{netip.MustParsePrefix("168.63.129.16/32"), "an address of cloud metadata"},
	{netip.MustParsePrefix("192.0.0.192/32"), "an address of cloud metadata"},
}

// private are the networks that an allow list can allow. All other networks are public.
var private = []network{
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "an address of carrier-grade NAT"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a special-purpose address"},
	{netip.MustParsePrefix("192.0.2.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("198.51.100.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a relay to IPv6"},
	{netip.MustParsePrefix("198.18.0.0/15"), "an address for benchmarks"},
}

func find(networks []network, to netip.Addr) (string, bool) {
	i := slices.IndexFunc(networks, func(n network) bool { return n.cidr.Contains(to) })
	if i < 0 {
		return "", false
	}
	return networks[i].what, true
}

// Destination is an address that a guest wants to reach.
type Destination struct {
	Address netip.Addr
	// Names are the DNS names that the resolver has answered to this guest with Address, and whose
	// time to live has not passed.
	Names []string
}

// Policy decides about the destinations of one guest.
type Policy struct {
	// Allowed are the private destinations that the guest may reach.
	Allowed AllowList
	// Guest is the network of the guest itself. Nothing allows its addresses.
	Guest netip.Prefix
}

// Check refuses a destination that the guest may not reach. host are the current addresses of the
// Mac, which may be public.
func (p *Policy) Check(to Destination, host []netip.Addr) error {
	address := to.Address.Unmap()
	refuse := func(what, remedy string) error {
		return fmt.Errorf("%s is %s; %s", to.Address, what, remedy)
	}
	const nothing = "no setting allows it for isolated guests"
	// IPv6 has many forms of one IPv4 address. The guest has no IPv6, so all of them are refused.
	if !address.Is4() {
		return refuse("not an IPv4 address", "isolated guests have no IPv6")
	}
	if what, ok := find(never, address); ok {
		return refuse(what, nothing)
	}
	if p.Guest.Contains(address) {
		return refuse("an address of the guest's own network", nothing)
	}
	if slices.ContainsFunc(host, func(own netip.Addr) bool { return own.Unmap() == address }) {
		return refuse("an address of the Mac itself", nothing)
	}
	what, ok := find(private, address)
	if !ok || p.Allowed.allowsAddress(address) || slices.ContainsFunc(to.Names, p.Allowed.AllowsName) {
		return nil
	}
	return refuse(what, "ask the operator to allow it in spec.guestNetwork of the RackConfig and in the InstanceClass")
}
