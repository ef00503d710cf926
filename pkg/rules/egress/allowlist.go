package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxEntries is the limit of networks, and of names, in an allow list.
const MaxEntries = 64

// AllowList is a list of private destinations.
type AllowList struct {
	// CIDRs are IPv4 networks.
	CIDRs []netip.Prefix
	// Names are DNS names in lower case, such as git.example.com. *.example.com stands for all
	// names below example.com.
	Names []string
}

// ParseAllowList returns the list of the given networks and names.
func ParseAllowList(cidrs, names []string) (AllowList, error) {
	var list AllowList
	var errs []error
	for _, text := range cidrs {
		cidr, err := ParseCIDR(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q %w", text, err))
		}
		list.CIDRs = append(list.CIDRs, cidr)
	}
	for _, name := range names {
		if err := CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("%q %w", name, err))
		}
		list.Names = append(list.Names, name)
	}
	return list, errors.Join(errs...)
}

// ParseCIDR parses an IPv4 network.
func ParseCIDR(text string) (netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("must be an IPv4 network such as 10.20.0.0/16")
	case !cidr.Addr().Is4():
		return netip.Prefix{}, errors.New("must be an IPv4 network such as 10.20.0.0/16; isolated guests have no IPv6")
	case cidr != cidr.Masked():
		return netip.Prefix{}, fmt.Errorf("must end in zero bits; use %s", cidr.Masked())
	}
	for _, n := range never {
		if containsCIDR(n.cidr, cidr) {
			return netip.Prefix{}, fmt.Errorf("must not be in %s, which nothing allows (%s)", n.cidr, n.what)
		}
	}
	return cidr, nil
}

// maxName is the limit of a DNS name, in bytes.
const maxName = 253

// The last label has a letter, so that no address is a name.
var validName = regexp.MustCompile(`^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName refuses a text that is not a name of an allow list.
func CheckName(name string) error {
	if len(name) > maxName || !validName.MatchString(name) {
		return errors.New("must be a DNS name in lower case such as git.example.com, or *.example.com for the names below it")
	}
	return nil
}

// Narrow returns the destinations that both lists allow.
func (l AllowList) Narrow(by AllowList) AllowList {
	return AllowList{
		CIDRs: common(l.CIDRs, by.CIDRs, containsCIDR),
		Names: common(l.Names, by.Names, containsName),
	}
}

// common returns the entries of each list that an entry of the other contains. Two entries are
// disjoint unless one of them contains the other.
func common[T comparable](a, b []T, contains func(outer, inner T) bool) []T {
	var both []T
	for _, x := range a {
		for _, y := range b {
			switch {
			case contains(x, y):
				both = append(both, y)
			case contains(y, x):
				both = append(both, x)
			}
		}
	}
	var unique []T
	for _, entry := range both {
		if !slices.Contains(unique, entry) {
			unique = append(unique, entry)
		}
	}
	return unique
}

func containsCIDR(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// containsName reports whether every name of the pattern inner is also one of the pattern outer.
func containsName(outer, inner string) bool {
	if outer == inner {
		return true
	}
	below, wildcard := strings.CutPrefix(outer, "*")
	return wildcard && strings.HasSuffix(strings.TrimPrefix(inner, "*"), below) && strings.TrimPrefix(inner, "*") != below
}

// AllowsName reports whether the list has a DNS name. The name may end in a dot, and its case does
// not matter.
func (l AllowList) AllowsName(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(l.Names, func(allowed string) bool { return containsName(allowed, name) })
}

func (l AllowList) allowsAddress(to netip.Addr) bool {
	return slices.ContainsFunc(l.CIDRs, func(allowed netip.Prefix) bool { return allowed.Contains(to) })
}
