package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// fakeMac is a Mac that passes all checks until a test changes it.
type fakeMac struct {
	system, arch, version, login         string
	console, vms                         int
	entitled, vault, sleeps, mayReboot   bool
	missing                              string
	uid                                  int
	mode                                 uint32
	free                                 int64
	lease                                time.Duration
	clones                               bool
	locked                               map[string]bool
	node                                 string
	from, to                             time.Time
	mac                                  Mac
	registries                           []string
	hostErr, storageErr, certErr, macErr error
	registriesErr, reachErr              error
	facts                                Facts
}

func healthy() *fakeMac {
	return &fakeMac{
		system: "darwin", arch: "arm64", version: "26.1", login: "rack", console: 501, entitled: true, mayReboot: true,
		uid: 501, mode: 0o700, free: 200 << 30, lease: 10 * time.Minute, clones: true, locked: map[string]bool{"/v/agent.lock": true},
		node: "mac-1", from: noon.Add(-24 * time.Hour), to: noon.Add(24 * time.Hour),
		mac: Mac{Server: "https://k", SerialNumber: "S-1", Phase: "Available"}, registries: []string{"registry.example.com"},
		facts: Facts{
			InLoginSession: true, Model: "Mac16,10", GuestNetwork: netip.MustParsePrefix("192.168.64.0/24"),
			Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/24")}, Leases: 12,
		},
	}
}

func (f *fakeMac) Platform() (string, string)                   { return f.system, f.arch }
func (f *fakeMac) MacOSVersion(context.Context) (string, error) { return f.version, f.hostErr }
func (f *fakeMac) Entitled(_ context.Context, _, _ string) (bool, error) {
	return f.entitled, f.hostErr
}
func (f *fakeMac) ConsoleUID(context.Context) (int, error)   { return f.console, f.hostErr }
func (f *fakeMac) AutoLogin(context.Context) (string, error) { return f.login, f.hostErr }
func (f *fakeMac) FileVault(context.Context) (bool, error)   { return f.vault, f.hostErr }
func (f *fakeMac) Sleeps(context.Context) (bool, error)      { return f.sleeps, f.hostErr }
func (f *fakeMac) JobLoaded(_ context.Context, domain, label string) (bool, error) {
	want := "gui/501"
	if label == "io.macrack.agent" {
		want = "system"
	}
	return domain == want && label != f.missing, f.hostErr
}
func (f *fakeMac) VirtualMachines(context.Context) (int, error) { return f.vms, f.hostErr }
func (f *fakeMac) MayReboot(context.Context) (bool, error)      { return f.mayReboot, f.hostErr }

func (f *fakeMac) Facts(context.Context) (Facts, error) { return f.facts, f.hostErr }

func (f *fakeMac) AddressLease(context.Context) (time.Duration, error) {
	return f.lease, f.hostErr
}

func (f *fakeMac) Owner(string) (int, uint32, error) { return f.uid, f.mode, f.storageErr }
func (f *fakeMac) Free(string) (int64, error)        { return f.free, f.storageErr }
func (f *fakeMac) CanClone(string) (bool, error)     { return f.clones, f.storageErr }
func (f *fakeMac) Locked(path string) (bool, error)  { return f.locked[path], f.storageErr }
func (f *fakeMac) Answers(path string) (bool, error) { return f.locked[path], f.storageErr }

func (f *fakeMac) Certificate() (string, time.Time, time.Time, error) {
	return f.node, f.from, f.to, f.certErr
}
func (f *fakeMac) Mac(context.Context, string) (Mac, error)     { return f.mac, f.macErr }
func (f *fakeMac) Registries(context.Context) ([]string, error) { return f.registries, f.registriesErr }
func (f *fakeMac) Reach(context.Context, string) error          { return f.reachErr }

func (f *fakeMac) doctor() *Doctor {
	return &Doctor{
		StateDir: "/v", VMBinary: "/b/macrack-vm", UID: 501, Host: f, Storage: f, Cluster: f, SerialNumber: "S-1", Clock: clocktesting.NewFakePassiveClock(noon),
	}
}

func TestHealthy(t *testing.T) {
	results := healthy().doctor().Run(t.Context())
	for _, r := range results {
		assert.Equal(t, OK, r.Status, "%+v", r)
		assert.NotEmpty(t, r.Message)
	}
	assert.Equal(t, OK, Worst(results))
	assert.Len(t, results, 24)
}

func TestFindings(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name   string
		change func(*fakeMac, *Doctor)
		check  string
		want   Status
		says   string
		advice string
	}{
		{"Intel", func(f *fakeMac, _ *Doctor) { f.arch = "amd64" }, "macos", Fail, "need Apple silicon", "Apple silicon"},
		{"old", func(f *fakeMac, _ *Doctor) { f.version = "11.7" }, "macos", Fail, "macOS 11.7 does not support macOS", "update macOS"},
		{"older", func(f *fakeMac, _ *Doctor) { f.version = "14.5" }, "macos", Warn, "macOS 14.5", "update macOS"},
		{"odd version", func(f *fakeMac, _ *Doctor) { f.version = "" }, "macos", Warn, "unknown version", ""},
		{"root", func(_ *fakeMac, d *Doctor) { d.UID = 0 }, "user", Fail, "root, which cannot start virtual machines", "without sudo"},
		{"no user at the screen", func(f *fakeMac, _ *Doctor) { f.console = 0 }, "login-session", Fail, "no user is logged in", "automatic login"},
		{"another at the screen", func(f *fakeMac, _ *Doctor) { f.console = 502 }, "login-session", Fail, "user 502 is logged in at the screen, the agent's user is 501", "log that user out"},
		{"no entitlement", func(f *fakeMac, _ *Doctor) { f.entitled = false }, "entitlement", Fail, "has no entitlement com.apple.security.virtualization", "codesign"},
		{"a slot's job is missing", func(f *fakeMac, _ *Doctor) { f.missing = "io.macrack.vm.1" }, "launchd-jobs", Fail, "job not loaded: gui/501/io.macrack.vm.1", "launchctl bootstrap gui/501 ~/Library/LaunchAgents/io.macrack.vm.1.plist"},
		{"the agent's job is missing", func(f *fakeMac, _ *Doctor) { f.missing = "io.macrack.agent" }, "launchd-jobs", Fail, "job not loaded: system/io.macrack.agent", "sudo launchctl bootstrap system /Library/LaunchDaemons/io.macrack.agent.plist"},
		{"a locked keychain", func(f *fakeMac, _ *Doctor) { f.facts.KeychainLocked = true }, "keychain", Fail, "the login keychain is locked", "security unlock-keychain"},
		{"over SSH", func(f *fakeMac, _ *Doctor) { f.facts.InLoginSession = false }, "keychain", Skip, "run doctor in Terminal", ""},
		{"automatic updates", func(f *fakeMac, _ *Doctor) { f.facts.AutomaticUpdates = true }, "automatic-updates", Warn, "installs updates by itself", "AutomaticallyInstallMacOSUpdates -bool false"},
		{"firewall", func(f *fakeMac, _ *Doctor) { f.facts.FirewallBlocks = true }, "firewall", Fail, "blocks port 10250", "--unblockapp /b/macrack-agent"},
		{"a clash of networks", func(f *fakeMac, _ *Doctor) {
			f.facts.Networks = []netip.Prefix{netip.MustParsePrefix("192.168.0.7/16")}
		}, "guest-network", Fail, "192.168.64.0/24 overlaps with the Mac's network 192.168.0.0/16", "Shared_Net_Address"},
		{"many leases", func(f *fakeMac, _ *Doctor) { f.facts.Leases = 250 }, "guest-leases", Warn, "has 250 leases", "sudo rm /var/db/dhcpd_leases"},
		{"M1 without serial numbers", func(f *fakeMac, _ *Doctor) { f.facts.Model, f.version = "Macmini9,1", "26.0.1" }, "guest-serial-numbers", Warn, "macOS 26.0.1 on a Mac with M1", "softwareupdate"},
		{"M1 with serial numbers", func(f *fakeMac, _ *Doctor) { f.facts.Model, f.version = "Macmini9,1", "26.2" }, "guest-serial-numbers", OK, "have serial numbers", ""},
		{"FileVault on macOS 26", func(f *fakeMac, _ *Doctor) { f.vault, f.version = true, "26.1" }, "auto-login", Warn, "can be unlocked over SSH", "fdesetup disable"},
		{"FileVault", func(f *fakeMac, _ *Doctor) { f.vault = true }, "auto-login", Warn, "FileVault is on", "fdesetup disable"},
		{"no automatic login", func(f *fakeMac, _ *Doctor) { f.login = "" }, "auto-login", Warn, "automatic login is off", "Automatically log in"},
		{"sleeps", func(f *fakeMac, _ *Doctor) { f.sleeps = true }, "sleep", Fail, "goes to sleep", "pmset -a sleep 0"},
		{"may not reboot", func(f *fakeMac, _ *Doctor) { f.mayReboot = false }, "reboot", Warn, "may not reboot", "sudoers.d"},
		{"addresses are kept for long", func(f *fakeMac, _ *Doctor) { f.lease = 24 * time.Hour }, "guest-addresses", Warn, "DHCP leases last 24h0m0s", "bootpd -dict DHCPLeaseTimeSecs -int 600"},
		{"no state directory", func(f *fakeMac, _ *Doctor) { f.storageErr = fs.ErrNotExist }, "state-dir", Fail, "/v does not exist", "install -d -m 0700 -o 501 /v"},
		{"another's state directory", func(f *fakeMac, _ *Doctor) { f.uid = 0 }, "state-dir", Fail, "belongs to user 0", "chown -R 501"},
		{"open state directory", func(f *fakeMac, _ *Doctor) { f.mode = 0o755 }, "state-dir", Fail, "accessible to other users (mode 0755)", "chmod 0700 /v"},
		{"long state directory", func(_ *fakeMac, d *Doctor) { d.StateDir = "/" + strings.Repeat("x", 95) }, "state-dir", Fail, "has 112 bytes", "shorter --state-dir"},
		{"full disk", func(f *fakeMac, _ *Doctor) { f.free = 9 << 30 }, "disk", Fail, "9 GiB are free", "free storage"},
		{"almost full disk", func(f *fakeMac, _ *Doctor) { f.free = 59 << 30 }, "disk", Warn, "59 GiB are free", "free storage"},
		{"no clones", func(f *fakeMac, _ *Doctor) { f.clones = false }, "clone", Warn, "cannot be cloned", "APFS"},
		{"not joined", func(f *fakeMac, _ *Doctor) { f.certErr = fs.ErrNotExist }, "certificate", Fail, "has not joined", "macrack-agent join"},
		{"not joined, so no server", func(f *fakeMac, _ *Doctor) { f.certErr = fs.ErrNotExist }, "server", Skip, "not checked", ""},
		{"not joined, so no registry", func(f *fakeMac, _ *Doctor) { f.certErr = fs.ErrNotExist }, "registry", Skip, "not checked", ""},
		{"expired", func(f *fakeMac, _ *Doctor) { f.to = noon }, "certificate", Fail, "expired 2026-08-01T12:00:00Z", "macrack-agent join"},
		{"not valid yet", func(f *fakeMac, _ *Doctor) { f.from = noon.Add(time.Second) }, "certificate", Fail, "valid from 2026-08-01T12:00:01Z", "set the clock"},
		{"not renewed", func(f *fakeMac, _ *Doctor) { f.to = noon.Add(time.Hour) }, "certificate", Warn, "has not been renewed", "kubectl get csr"},
		{"no answer", func(f *fakeMac, _ *Doctor) { f.macErr = broken }, "server", Fail, "is not reachable: broken", "/v/kubeconfig"},
		{"clock far off", func(f *fakeMac, _ *Doctor) { f.mac.Skew = -6 * time.Minute }, "server", Fail, "differs by -6m0s", "sntp"},
		{"clock off", func(f *fakeMac, _ *Doctor) { f.mac.Skew = 6 * time.Second }, "server", Warn, "differs by 6s", "NTP"},
		{"another Mac", func(_ *fakeMac, d *Doctor) { d.SerialNumber = "S-2" }, "server", Fail, "has serial number S-1, this Mac has S-2", "join under the name"},
		{"quarantine", func(f *fakeMac, _ *Doctor) { f.mac.Quarantine = "KernelQuotaStuck" }, "server", Warn, "in quarantine: KernelQuotaStuck", "kubectl describe macnode mac-1"},
		{"no registry", func(f *fakeMac, _ *Doctor) { f.reachErr = broken }, "registry", Warn, "registry registry.example.com is not reachable: broken", "firewall"},
		{"no catalogue", func(f *fakeMac, _ *Doctor) { f.registriesErr = broken }, "registry", Skip, "cannot be read: broken", ""},
		{"no images", func(f *fakeMac, _ *Doctor) { f.registries = nil }, "registry", Skip, "is empty", ""},
		{"a machine without an agent", func(f *fakeMac, _ *Doctor) { f.locked = map[string]bool{"/v/slots/1/vm.sock": true}; f.vms = 1 }, "leftovers", Warn, "1 virtual machines run without an agent", "start the agent"},
		{"machines with an agent", func(f *fakeMac, _ *Doctor) { f.locked["/v/slots/1/vm.sock"] = true }, "leftovers", OK, "running virtual machines: 1", ""},
		{"a virtual machine of another user", func(f *fakeMac, _ *Doctor) { f.locked["/v/slots/1/vm.sock"] = true; f.vms = 2 }, "foreign-vms", Fail, "1 virtual machines run that do not belong to MacRack", "stop them"},
		{"macOS does not tell", func(f *fakeMac, _ *Doctor) { f.hostErr = broken }, "sleep", Warn, "check failed: broken", ""},
		{"Linux", func(f *fakeMac, _ *Doctor) { f.system, f.arch = "linux", "amd64" }, "entitlement", Skip, "not checked: this is linux/amd64, not a Mac", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			d := f.doctor()
			tt.change(f, d)
			results := d.Run(t.Context())
			var found []Result
			for _, r := range results {
				if r.Check == tt.check {
					found = append(found, r)
				}
			}
			require.NotEmpty(t, found)
			hit := false
			for _, r := range found {
				if r.Status == tt.want && strings.Contains(r.Message, tt.says) {
					hit = true
					assert.Contains(t, r.Advice, tt.advice)
					assert.Equal(t, tt.advice == "", r.Advice == "", r.Advice)
				}
			}
			assert.True(t, hit, "%+v", found)
			if tt.want == Fail {
				assert.Equal(t, Fail, Worst(results))
			}
		})
	}
	assert.Equal(t, Warn, Worst([]Result{{Status: OK}, {Status: Warn}, {Status: Skip}}))
}

// The output of macOS commands is as in their manuals and in reports of users.
func TestCommands(t *testing.T) {
	exit := exec.CommandContext(t.Context(), "false").Run()
	outputs := map[string]string{
		"/usr/bin/sw_vers -productVersion":                           "26.1\n",
		"/usr/bin/stat -f %u /dev/console":                           "501\n",
		"/usr/bin/fdesetup status":                                   "FileVault is Off.\n",
		"/usr/bin/pmset -g":                                          "System-wide power settings:\nCurrently in use:\n standby              0\n Sleep On Power Button 1\n autorestart          1\n disksleep            10\n sleep                0 (sleep prevented by powerd)\n displaysleep         10\n",
		"/bin/ps -axo comm=":                                         "/sbin/launchd\n/System/Library/Frameworks/Virtualization.framework/Versions/A/XPCServices/com.apple.Virtualization.VirtualMachine.xpc/Contents/MacOS/com.apple.Virtualization.VirtualMachine\n/usr/local/bin/macrack-vm\n",
		"/bin/launchctl print gui/501/here":                          "gui/501/here = {\n",
		"/usr/bin/sudo -n -l /sbin/shutdown -r now":                  "/sbin/shutdown -r now\n",
		"/usr/bin/codesign --display --entitlements - --xml /b/vm":   `<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "https://www.apple.com/DTDs/PropertyList-1.0.dtd"><plist version="1.0"><dict><key>com.apple.security.virtualization</key><true/></dict></plist>`,
		"/usr/bin/codesign --display --entitlements - --xml /b/none": "",
	}
	c := Commands{Run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		out, ok := outputs[name+" "+strings.Join(args, " ")]
		if !ok {
			return nil, exit
		}
		return []byte(out), nil
	}}
	ctx := t.Context()
	version, err := c.MacOSVersion(ctx)
	require.NoError(t, err)
	assert.Equal(t, "26.1", version)
	uid, err := c.ConsoleUID(ctx)
	require.NoError(t, err)
	assert.Equal(t, 501, uid)
	is := func(want bool) func(bool, error) {
		return func(got bool, err error) {
			t.Helper()
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
	}
	is(false)(c.FileVault(ctx))
	is(false)(c.Sleeps(ctx))
	is(true)(c.MayReboot(ctx))
	is(true)(c.JobLoaded(ctx, "gui/501", "here"))
	is(false)(c.JobLoaded(ctx, "gui/501", "gone"))
	is(true)(c.Entitled(ctx, "/b/vm", entitlement))
	is(false)(c.Entitled(ctx, "/b/vm", "com.apple.vm.networking"))
	is(false)(c.Entitled(ctx, "/b/none", entitlement))
	vms, err := c.VirtualMachines(ctx)
	require.NoError(t, err)
	assert.Equal(t, 1, vms)
	login, err := c.AutoLogin(ctx)
	require.NoError(t, err)
	assert.Empty(t, login, "there is no such setting")
	outputs["/usr/bin/defaults read /Library/Preferences/com.apple.loginwindow autoLoginUser"] = "rack\n"
	login, err = c.AutoLogin(ctx)
	require.NoError(t, err)
	assert.Equal(t, "rack", login)
	lease, err := c.AddressLease(ctx)
	require.NoError(t, err)
	assert.Equal(t, 24*time.Hour, lease, "there is no such setting")
	outputs["/usr/bin/plutil -extract bootpd.DHCPLeaseTimeSecs raw -o - /Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist"] = "600\n"
	lease, err = c.AddressLease(ctx)
	require.NoError(t, err)
	assert.Equal(t, 10*time.Minute, lease)
	outputs["/usr/bin/pmset -g"] = " sleep                1\n"
	is(true)(c.Sleeps(ctx))
	outputs["/usr/bin/fdesetup status"] = "FileVault is On.\n"
	is(true)(c.FileVault(ctx))
	delete(outputs, "/usr/bin/sw_vers -productVersion")
	_, err = c.MacOSVersion(ctx)
	require.ErrorContains(t, err, "sw_vers: exit status 1")
}

func TestFiles(t *testing.T) {
	dir, err := os.MkdirTemp("", "doc")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, mode, err := Files{}.Owner(dir)
	require.NoError(t, err)
	assert.Equal(t, os.Getuid(), uid)
	assert.Equal(t, uint32(0o700), mode)

	lockFile := filepath.Join(dir, "lock")
	locked, err := Files{}.Locked(lockFile)
	require.NoError(t, err)
	assert.False(t, locked)
	assert.NoFileExists(t, lockFile)
	lock, err := contract.TryLockFile(lockFile)
	require.NoError(t, err)
	locked, err = Files{}.Locked(lockFile)
	require.NoError(t, err)
	assert.True(t, locked)
	lock.Unlock()

	socket := filepath.Join(dir, "s")
	answers, err := Files{}.Answers(socket)
	require.NoError(t, err)
	assert.False(t, answers)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	answers, err = Files{}.Answers(socket)
	require.NoError(t, err)
	assert.True(t, answers)
	l.Close()
	answers, err = Files{}.Answers(socket)
	require.NoError(t, err)
	assert.False(t, answers, "a socket that its process has left behind")

	_, err = Files{}.CanClone(dir)
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "nothing is left behind")
}
