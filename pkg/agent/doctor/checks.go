package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// minimumMacOS is the first version that runs macOS in a virtual machine.
	minimumMacOS = 12
	// sshUnlockMacOS is the first version whose FileVault can be unlocked over SSH after a boot.
	sshUnlockMacOS = 26
	// sessionMacOS is the first version that requires a login session of the user who starts a
	// virtual machine.
	sessionMacOS = 15

	entitlement = "com.apple.security.virtualization"

	// failFree and warnFree are in bytes. Below failFree the Mac is not StorageHealthy; below
	// warnFree there is hardly room for an image.
	failFree = 10 << 30
	warnFree = 60 << 30

	// warnLease is too long for guests: macOS hands out the addresses of a /24, and every instance
	// needs a new one.
	warnLease = time.Hour

	// warnSkew is small compared to the tolerance of certificates, and large compared to the error
	// of NTP.
	warnSkew = 5 * time.Second

	joinAdvice = "ask an administrator for a token (macrack-agent token create NAME --print-join-command); then run macrack-agent join"
)

func (d *Doctor) macOS(ctx context.Context) {
	_, arch := d.Host.Platform()
	if arch != "arm64" {
		d.say(Fail, "use a Mac with Apple silicon", "this Mac has %s; macOS virtual machines need Apple silicon", arch)
		return
	}
	version, err := d.Host.MacOSVersion(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	major := majorVersion(version)
	switch {
	case major == 0:
		d.say(Warn, "", "unknown version %q", version)
	case major < minimumMacOS:
		d.say(Fail, "update macOS", "macOS %s does not support macOS virtual machines; macOS %d does", version, minimumMacOS)
	case major < sessionMacOS:
		d.say(Warn, "update macOS; an image that is newer than its host may not start", "macOS %s on Apple silicon", version)
	default:
		d.say(OK, "", "macOS %s on Apple silicon", version)
	}
}

func (d *Doctor) user(context.Context) {
	system, _ := d.Host.Platform()
	switch {
	case d.UID != 0:
		d.say(OK, "", "runs as user %d", d.UID)
	case system == "darwin":
		d.say(Fail, "run this command and the agent as the logged-in user, without sudo", "runs as root, which cannot start virtual machines")
	default:
		d.say(Warn, "run the agent as a user of its own", "runs as root")
	}
}

func (d *Doctor) loginSession(ctx context.Context) {
	uid, err := d.Host.ConsoleUID(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case uid == 0:
		d.say(Fail, "log the agent's user in at the screen, with Screen Sharing, or with automatic login", "no user is logged in at the screen; since macOS 15, virtual machines start only in a login session")
	case uid != d.UID:
		d.say(Fail, "log that user out, and log the agent's user in", "user %d is logged in at the screen, the agent's user is %d", uid, d.UID)
	default:
		d.say(OK, "", "the agent's user is logged in at the screen")
	}
}

func (d *Doctor) entitlement(ctx context.Context) {
	entitled, err := d.Host.Entitled(ctx, d.VMBinary, entitlement)
	switch {
	case err != nil:
		d.say(Fail, "reinstall the package", "%s: %v", d.VMBinary, err)
	case !entitled:
		d.say(Fail, "sign it: codesign --force --options runtime --entitlements vm.entitlements --sign IDENTITY "+d.VMBinary, "%s has no entitlement %s", d.VMBinary, entitlement)
	default:
		d.say(OK, "", "%s has %s", d.VMBinary, entitlement)
	}
}

func (d *Doctor) jobs(ctx context.Context) {
	session := slots.LaunchdDomain(d.UID)
	type job struct{ domain, label, load string }
	jobs := []job{{slots.AgentDomain, slots.AgentLabel, "sudo launchctl bootstrap system /Library/LaunchDaemons/" + slots.AgentLabel + ".plist"}}
	for slot := range rules.MaxVMsPerMac {
		label := slots.SlotLabel(slot)
		jobs = append(jobs, job{session, label, fmt.Sprintf("launchctl bootstrap %s ~/Library/LaunchAgents/%s.plist", session, label)})
	}
	for _, j := range jobs {
		loaded, err := d.Host.JobLoaded(ctx, j.domain, j.label)
		if err != nil {
			d.unknown(err)
			return
		}
		if !loaded {
			d.say(Fail, j.load, "job not loaded: %s/%s", j.domain, j.label)
			return
		}
	}
	d.say(OK, "", "the agent's job is loaded in %s, and those of %d slots in %s", slots.AgentDomain, rules.MaxVMsPerMac, session)
}

func (d *Doctor) autoLogin(ctx context.Context) {
	on, err := d.Host.FileVault(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	if on {
		hint := ""
		if version, err := d.Host.MacOSVersion(ctx); err == nil && majorVersion(version) >= sshUnlockMacOS {
			hint = fmt.Sprintf("; macOS %d and later can be unlocked over SSH after a boot, if Remote Login is on", sshUnlockMacOS)
		}
		d.say(Warn, "sudo fdesetup disable; then enable automatic login", "FileVault is on; after a reboot the Mac waits for a password and is Offline until then%s", hint)
		return
	}
	user, err := d.Host.AutoLogin(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case user == "":
		d.say(Warn, "System Settings > Users & Groups > Automatically log in as", "automatic login is off; after a reboot the Mac is Offline until a user logs in")
	default:
		d.say(OK, "", "%s is logged in automatically", user)
	}
}

func (d *Doctor) sleep(ctx context.Context) {
	sleeps, err := d.Host.Sleeps(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case sleeps:
		d.say(Fail, "sudo pmset -a sleep 0 disksleep 0 autorestart 1", "this Mac goes to sleep, and its virtual machines with it")
	default:
		d.say(OK, "", "this Mac does not go to sleep")
	}
}

func (d *Doctor) reboot(ctx context.Context) {
	may, err := d.Host.MayReboot(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case !may:
		d.say(Warn, "reinstall the package; it writes /etc/sudoers.d/macrack", "the agent may not reboot this Mac, as required for spec.quarantine.reboot: WhenEmpty of the RackConfig")
	default:
		d.say(OK, "", "the agent may reboot this Mac when it is in quarantine and empty")
	}
}

func (d *Doctor) guestAddresses(ctx context.Context) {
	lease, err := d.Host.AddressLease(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case lease > warnLease:
		d.say(Warn, "sudo defaults write "+sharingPreferences+" bootpd -dict DHCPLeaseTimeSecs -int 600", "DHCP leases last %s, even after the instance has ended; about 250 instances within that time use up all addresses", lease)
	default:
		d.say(OK, "", "DHCP leases last %s", lease)
	}
}

func (d *Doctor) stateDir(context.Context) {
	uid, mode, err := d.Storage.Owner(d.StateDir)
	socket := contract.SlotDir(d.path("slots", "0")).SocketPath()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.say(Fail, fmt.Sprintf("sudo install -d -m 0700 -o %d %s", d.UID, d.StateDir), "%s does not exist", d.StateDir)
	case err != nil:
		d.say(Fail, "", "%s: %v", d.StateDir, err)
	case uid != d.UID:
		d.say(Fail, fmt.Sprintf("sudo chown -R %d %s", d.UID, d.StateDir), "%s belongs to user %d, not to %d", d.StateDir, uid, d.UID)
	case mode&0o077 != 0:
		d.say(Fail, "chmod 0700 "+d.StateDir, "%s is accessible to other users (mode %04o); it contains keys and sockets", d.StateDir, mode)
	case len(socket) > contract.MaxSocketPath:
		d.say(Fail, "use a shorter --state-dir", "the path of a slot's socket has %d bytes, and the limit is %d: %s", len(socket), contract.MaxSocketPath, socket)
	default:
		d.say(OK, "", "%s is accessible only to the agent's user", d.StateDir)
	}
}

func (d *Doctor) disk(context.Context) {
	free, err := d.Storage.Free(d.StateDir)
	switch {
	case err != nil:
		d.unknown(err)
	case free < failFree:
		d.say(Fail, "free storage; the Mac is not StorageHealthy", "%d GiB are free on the disk of %s, and %d are required", free>>30, d.StateDir, failFree>>30)
	case free < warnFree:
		d.say(Warn, "free storage; a macOS image takes 30 to 80 GiB", "%d GiB are free on the disk of %s", free>>30, d.StateDir)
	default:
		d.say(OK, "", "%d GiB are free", free>>30)
	}
}

func (d *Doctor) clone(context.Context) {
	can, err := d.Storage.CanClone(d.StateDir)
	switch {
	case err != nil:
		d.unknown(err)
	case !can:
		d.say(Warn, "put the state directory on APFS (macOS), or on a file system with reflinks, such as XFS or Btrfs (Linux)", "files cannot be cloned; each virtual machine copies its image, which takes minutes and the full size of the image")
	default:
		d.say(OK, "", "files can be cloned")
	}
}

func (d *Doctor) certificate(context.Context) {
	node, from, to, err := d.Cluster.Certificate()
	now := d.Clock.Now()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.say(Fail, joinAdvice, "this Mac has not joined a cluster")
	case err != nil:
		d.say(Fail, joinAdvice, "%v", err)
	case !now.Before(to):
		d.say(Fail, "check the clock; then: "+joinAdvice, "the certificate of Node %s expired %s", node, to.Format(time.RFC3339))
	case now.Before(from):
		d.say(Fail, "set the clock: sudo sntp -sS time.apple.com", "the certificate of Node %s is valid from %s, and it is %s", node, from.Format(time.RFC3339), now.Format(time.RFC3339))
	case to.Sub(now) < to.Sub(from)/20:
		d.say(Warn, "check the agent's log and `kubectl get csr`", "the certificate of Node %s expires %s and has not been renewed", node, to.Format(time.RFC3339))
	default:
		d.say(OK, "", "Node %s until %s", node, to.Format(time.RFC3339))
	}
}

func (d *Doctor) server(ctx context.Context) {
	node, _, _, err := d.Cluster.Certificate()
	if err != nil {
		d.say(Skip, "", "not checked: this Mac has not joined a cluster")
		return
	}
	mac, err := d.Cluster.Mac(ctx, node)
	switch {
	case err != nil:
		d.say(Fail, "check the network of the Mac and the address in "+d.path("kubeconfig"), "the cluster is not reachable: %v", err)
		return
	case mac.Skew.Abs() > credentials.MaxClockSkew:
		d.say(Fail, "run sudo sntp -sS time.apple.com, and enable NTP", "the clock differs by %s from that of %s", mac.Skew.Round(time.Second), mac.Server)
	case mac.Skew.Abs() > warnSkew:
		d.say(Warn, "enable NTP", "the clock differs by %s from that of %s", mac.Skew.Round(time.Second), mac.Server)
	default:
		d.say(OK, "", "%s is reachable, and the clocks agree", mac.Server)
	}
	switch {
	case d.SerialNumber != "" && mac.SerialNumber != d.SerialNumber:
		d.say(Fail, "join under the name of this Mac, or correct the MacNode", "MacNode %s has serial number %s, this Mac has %s", node, mac.SerialNumber, d.SerialNumber)
	case mac.Quarantine != "":
		d.say(Warn, "kubectl describe macnode "+node, "MacNode %s is in quarantine: %s", node, mac.Quarantine)
	default:
		d.say(OK, "", "MacNode %s is %s", node, mac.Phase)
	}
}

func (d *Doctor) registry(ctx context.Context) {
	if _, _, _, err := d.Cluster.Certificate(); err != nil {
		d.say(Skip, "", "not checked: this Mac has not joined a cluster")
		return
	}
	hosts, err := d.Cluster.Registries(ctx)
	if err != nil {
		d.say(Skip, "", "not checked: the image catalogue cannot be read: %v", err)
		return
	}
	if len(hosts) == 0 {
		d.say(Skip, "", "not checked: the image catalogue is empty")
	}
	for _, host := range hosts {
		if err := d.Cluster.Reach(ctx, host); err != nil {
			d.say(Warn, "check the name, the network and the firewall; images on the Mac remain usable", "registry %s is not reachable: %v", host, err)
			continue
		}
		d.say(OK, "", "registry %s answers", host)
	}
}

func (d *Doctor) leftovers(context.Context) {
	running, err := d.runningSlots()
	if err != nil {
		d.unknown(err)
		return
	}
	agent, err := d.Storage.Locked(d.path("agent.lock"))
	if err != nil {
		d.unknown(err)
		return
	}
	switch {
	case agent:
		d.say(OK, "", "the agent runs; running virtual machines: %d", running)
	case running > 0:
		d.say(Warn, "start the agent; it adopts them without a restart", "%d virtual machines run without an agent", running)
	default:
		d.say(OK, "", "no agent and no virtual machine runs")
	}
}

func (d *Doctor) runningSlots() (int, error) {
	running := 0
	for slot := range rules.MaxVMsPerMac {
		answers, err := d.Storage.Answers(contract.SlotDir(d.path("slots", strconv.Itoa(slot))).SocketPath())
		if err != nil {
			return 0, err
		}
		if answers {
			running++
		}
	}
	return running, nil
}

func (d *Doctor) foreignVMs(ctx context.Context) {
	ours, err := d.runningSlots()
	if err != nil {
		d.unknown(err)
		return
	}
	all, err := d.Host.VirtualMachines(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case all > ours:
		d.say(Fail, "stop them; they use up the kernel's limit of virtual machines", "%d virtual machines run that do not belong to MacRack", all-ours)
	default:
		d.say(OK, "", "no foreign virtual machine runs")
	}
}
