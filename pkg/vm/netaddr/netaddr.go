// Package netaddr finds the IP address of a virtual machine by its MAC address, in the tables of
// its host.
package netaddr

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// FromDHCPLeases returns the newest address that macOS' DHCP server has leased to mac, from the
// content of /var/db/dhcpd_leases. It ignores leases that have expired.
func FromDHCPLeases(leases io.Reader, mac net.HardwareAddr, now time.Time) (netip.Addr, bool) {
	var found netip.Addr
	var until, newest int64
	var address netip.Addr
	var matches bool
	lines := bufio.NewScanner(leases)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		key, value, _ := strings.Cut(line, "=")
		switch {
		case line == "{":
			address, matches, until = netip.Addr{}, false, 0
		case key == "ip_address":
			address, _ = netip.ParseAddr(value)
		case key == "hw_address":
			// "1,5e:1:23:..." where 1 is Ethernet.
			_, hardware, _ := strings.Cut(value, ",")
			matches = sameMAC(hardware, mac)
		case key == "lease":
			until, _ = strconv.ParseInt(strings.TrimPrefix(value, "0x"), 16, 64)
		case line == "}":
			if matches && address.IsValid() && until > newest && until > now.Unix() {
				found, newest = address, until
			}
		}
	}
	return found, found.IsValid()
}

// FromARP returns the address of mac in the host's neighbor table, from the output of `arp -an`.
func FromARP(table io.Reader, mac net.HardwareAddr) (netip.Addr, bool) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// ? (192.168.64.2) at 5e:1:23:45:67:89 on bridge100 ifscope [bridge]
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[2] != "at" || !sameMAC(fields[3], mac) {
			continue
		}
		if address, err := netip.ParseAddr(strings.Trim(fields[1], "()")); err == nil {
			return address, true
		}
	}
	return netip.Addr{}, false
}

// sameMAC compares a MAC address with its macOS notation, which omits leading zeros.
func sameMAC(written string, mac net.HardwareAddr) bool {
	octets := strings.Split(written, ":")
	if len(octets) != len(mac) {
		return false
	}
	for i, octet := range octets {
		value, err := strconv.ParseUint(octet, 16, 8)
		if err != nil || byte(value) != mac[i] {
			return false
		}
	}
	return true
}
