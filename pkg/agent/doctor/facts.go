package doctor

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"macrack.io/macrack/pkg/vm/keychain"
)

// vmnetPreferences holds the network of guests, if it is not chosen by macOS.
const vmnetPreferences = "/Library/Preferences/SystemConfiguration/com.apple.vmnet.plist"

// Facts implements Host.
func (c Commands) Facts(ctx context.Context) (Facts, error) {
	var f Facts
	manager, err := c.run(ctx, "/bin/launchctl", "managername")
	if err != nil {
		return f, err
	}
	if f.InLoginSession = manager == "Aqua"; f.InLoginSession {
		if f.KeychainLocked, err = (keychain.Security{Run: c.exitCode}).Locked(ctx); err != nil {
			return f, err
		}
	}
	if f.Model, err = c.run(ctx, "/usr/sbin/sysctl", "-n", "hw.model"); err != nil {
		return f, err
	}
	if f.AutomaticUpdates, err = c.automaticUpdates(ctx); err != nil {
		return f, err
	}
	if f.FirewallBlocks, err = c.firewallBlocks(ctx); err != nil {
		return f, err
	}
	f.GuestNetwork = c.guestNetwork(ctx)
	f.Networks, err = networks()
	if err != nil {
		return f, err
	}
	leases, err := os.ReadFile(leasesFile)
	if err != nil && !os.IsNotExist(err) {
		return f, err
	}
	f.Leases = bytes.Count(leases, []byte("hw_address="))
	return f, nil
}

// exitCode runs a command for its exit code. A failed command counts as the exit code of a locked
// keychain, because Run hides it.
func (c Commands) exitCode(ctx context.Context, name string, args ...string) (int, error) {
	ok, err := c.succeeds(ctx, name, args...)
	if err != nil || ok {
		return 0, err
	}
	return keychain.ExitLocked, nil
}

// automaticUpdates reports whether macOS installs updates. The setting is on unless it is set to 0.
func (c Commands) automaticUpdates(ctx context.Context) (bool, error) {
	args := []string{"read", "/Library/Preferences/com.apple.SoftwareUpdate", "AutomaticallyInstallMacOSUpdates"}
	set, err := c.succeeds(ctx, "/usr/bin/defaults", args...)
	if err != nil || !set {
		return !set, err
	}
	value, err := c.run(ctx, "/usr/bin/defaults", args...)
	return value != "0", err
}

// firewallBlocks reports whether the application firewall is on and does not permit the agent.
func (c Commands) firewallBlocks(ctx context.Context) (bool, error) {
	state, err := c.run(ctx, firewall, "--getglobalstate")
	if err != nil || strings.Contains(state, "State = 0") {
		return false, err
	}
	permitted, err := c.run(ctx, firewall, "--getappblocked", agentBinary())
	return !strings.Contains(permitted, "permitted") && !strings.Contains(permitted, "are allowed"), err
}

// guestNetwork returns the network of guests, or the zero Prefix if macOS chooses it.
func (c Commands) guestNetwork(ctx context.Context) netip.Prefix {
	read := func(key string) (netip.Addr, error) {
		text, err := c.run(ctx, "/usr/bin/defaults", "read", vmnetPreferences, key)
		if err != nil {
			return netip.Addr{}, err
		}
		return netip.ParseAddr(text)
	}
	address, err := read("Shared_Net_Address")
	if err != nil {
		return netip.Prefix{}
	}
	bits := 24
	if mask, err := read("Shared_Net_Mask"); err == nil && mask.Is4() {
		bits, _ = net.IPMask(mask.AsSlice()).Size()
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}

// networks returns the IPv4 networks of the Mac's interfaces, except for those of its guests.
func networks() ([]netip.Prefix, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var found []netip.Prefix
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 || strings.HasPrefix(i.Name, "bridge") {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
				found = append(found, prefix)
			}
		}
	}
	return found, nil
}

// agentBinary is the program that the firewall must permit: this one.
func agentBinary() string {
	self, err := os.Executable()
	if err != nil {
		return "/usr/local/bin/macrack-agent"
	}
	return self
}

func (d *Doctor) agentBinary() string {
	return filepath.Join(filepath.Dir(d.VMBinary), "macrack-agent")
}
