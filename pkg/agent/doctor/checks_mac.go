package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Facts are settings of macOS that break a fleet silently.
type Facts struct {
	// InLoginSession reports whether doctor runs in the login session at the screen, as Terminal
	// does and SSH does not.
	InLoginSession bool
	// KeychainLocked reports whether the login keychain of doctor's own session is locked.
	KeychainLocked bool
	// AutomaticUpdates reports whether macOS installs updates by itself, and reboots for them.
	AutomaticUpdates bool
	// FirewallBlocks reports whether the application firewall blocks connections to the agent.
	FirewallBlocks bool
	// Model is the model identifier, such as Mac16,10.
	Model string
	// GuestNetwork is the network of guests behind the Mac's NAT.
	GuestNetwork netip.Prefix
	// Networks are the networks of the Mac's other interfaces.
	Networks []netip.Prefix
	// Leases is the number of leases of the DHCP server for guests.
	Leases int
}

const (
	// warnLeases is close to the size of the network of guests.
	warnLeases = 200
	// leasesFile is the lease file of bootpd.
	leasesFile = "/var/db/dhcpd_leases"

	firewall = "/usr/libexec/ApplicationFirewall/socketfilterfw"
)

// settings checks the facts of the Mac.
func (d *Doctor) settings(ctx context.Context) {
	f, err := d.Host.Facts(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	for _, c := range []struct {
		name string
		run  func(Facts)
	}{
		{"keychain", d.keychain},
		{"automatic-updates", d.automaticUpdates},
		{"firewall", d.firewall},
		{"guest-network", d.guestNetwork},
		{"guest-leases", d.guestLeases},
	} {
		d.check = c.name
		c.run(f)
	}
	d.check = "guest-serial-numbers"
	d.guestSerialNumbers(ctx, f)
}

func (d *Doctor) keychain(f Facts) {
	switch {
	case !f.InLoginSession:
		d.say(Skip, "", "not checked: SSH does not see the keychain of the login session; run doctor in Terminal at the screen")
	case f.KeychainLocked:
		d.say(Fail, "security unlock-keychain login.keychain-db; then: security set-keychain-settings login.keychain-db", "the login keychain is locked; macOS 15 and later start no virtual machine of macOS 15.2 or later")
	default:
		d.say(OK, "", "the login keychain is unlocked")
	}
}

func (d *Doctor) automaticUpdates(f Facts) {
	if f.AutomaticUpdates {
		d.say(Warn, "sudo defaults write /Library/Preferences/com.apple.SoftwareUpdate AutomaticallyInstallMacOSUpdates -bool false", "macOS installs updates by itself; the Mac reboots, and its virtual machines end")
		return
	}
	d.say(OK, "", "macOS installs no updates by itself")
}

func (d *Doctor) firewall(f Facts) {
	if f.FirewallBlocks {
		agent := d.agentBinary()
		d.say(Fail, fmt.Sprintf("sudo %s --add %s; sudo %s --unblockapp %s", firewall, agent, firewall, agent), "the application firewall blocks port 10250; kubectl logs, exec and port-forward fail")
		return
	}
	d.say(OK, "", "the application firewall lets kube-apiserver connect to the agent")
}

func (d *Doctor) guestNetwork(f Facts) {
	if !f.GuestNetwork.IsValid() {
		d.say(OK, "", "macOS chooses the network of guests")
		return
	}
	for _, network := range f.Networks {
		if network.Overlaps(f.GuestNetwork) {
			d.say(Fail, "sudo defaults write /Library/Preferences/SystemConfiguration/com.apple.vmnet.plist Shared_Net_Address -string 192.168.253.1; then reboot",
				"the network of guests %s overlaps with the Mac's network %s; guests cannot reach it", f.GuestNetwork, network.Masked())
			return
		}
	}
	d.say(OK, "", "the network of guests is %s", f.GuestNetwork)
}

func (d *Doctor) guestLeases(f Facts) {
	if f.Leases >= warnLeases {
		d.say(Warn, "sudo rm "+leasesFile+"; do this while no virtual machine runs", "%s has %d leases; new guests may get no address", leasesFile, f.Leases)
		return
	}
	d.say(OK, "", "%d addresses of guests are leased", f.Leases)
}

// guestSerialNumbers knows the defect of macOS 26.0 and 26.1 on Macs with M1.
func (d *Doctor) guestSerialNumbers(ctx context.Context, f Facts) {
	version, err := d.Host.MacOSVersion(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	if m1(f.Model) && (minorVersion(version) == "26.0" || minorVersion(version) == "26.1") {
		d.say(Warn, "sudo softwareupdate --install --all --restart; do this while no virtual machine runs", "macOS %s on a Mac with M1 gives guests no serial number", version)
		return
	}
	d.say(OK, "", "guests have serial numbers")
}

// m1 reports whether a model has an M1, M1 Pro, M1 Max or M1 Ultra.
func m1(model string) bool {
	switch model {
	case "Macmini9,1", "iMac21,1", "iMac21,2", "Mac13,1", "Mac13,2", "MacBookAir10,1",
		"MacBookPro17,1", "MacBookPro18,1", "MacBookPro18,2", "MacBookPro18,3", "MacBookPro18,4":
		return true
	}
	return false
}

// majorVersion returns 26 for 26.1.2, or 0 if the version cannot be read.
func majorVersion(version string) int {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

// minorVersion returns 26.1 for 26.1.2, and 26.0 for 26.
func minorVersion(version string) string {
	parts := append(strings.Split(version, "."), "0")
	return parts[0] + "." + parts[1]
}
