// Package doctor checks whether a Mac meets the requirements of its agent, and suggests remedies.
package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

// Status is the outcome of a check.
type Status string

const (
	// OK: nothing to do.
	OK Status = "ok"
	// Warn: the agent works, but an administrator should look at the result.
	Warn Status = "warn"
	// Fail: the agent cannot work.
	Fail Status = "fail"
	// Skip: the check did not run; the message has the reason.
	Skip Status = "skip"
)

// Result is the result of a check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Message is the finding.
	Message string `json:"message"`
	// Advice is the remedy, or empty.
	Advice string `json:"advice,omitempty"`
}

// Host answers the checks of a Mac about its system.
type Host interface {
	// Platform returns GOOS and GOARCH.
	Platform() (system, arch string)
	MacOSVersion(ctx context.Context) (string, error)
	// Entitled reports whether a program is signed with an entitlement.
	Entitled(ctx context.Context, program, entitlement string) (bool, error)
	// ConsoleUID returns the user who is logged in at the screen, or 0.
	ConsoleUID(ctx context.Context) (int, error)
	// AutoLogin returns the name of the user who is logged in automatically, or an empty string.
	AutoLogin(ctx context.Context) (string, error)
	FileVault(ctx context.Context) (bool, error)
	// Sleeps reports whether the Mac goes to sleep by itself.
	Sleeps(ctx context.Context) (bool, error)
	JobLoaded(ctx context.Context, domain, label string) (bool, error)
	// VirtualMachines counts the processes of Virtualization.framework, of all users.
	VirtualMachines(ctx context.Context) (int, error)
	MayReboot(ctx context.Context) (bool, error)
	// AddressLease returns the DHCP lease time of guests behind the Mac's NAT.
	AddressLease(ctx context.Context) (time.Duration, error)
	Facts(ctx context.Context) (Facts, error)
}

// Storage answers the checks about the file system of the agent's state.
type Storage interface {
	// Owner returns the owner and the permissions of a file.
	Owner(path string) (uid int, mode uint32, err error)
	Free(path string) (int64, error)
	// CanClone reports whether files in a directory can share their blocks.
	CanClone(dir string) (bool, error)
	// Locked reports whether a process holds the lock on a file.
	Locked(lockFile string) (bool, error)
	// Answers reports whether a process listens on a unix socket.
	Answers(socket string) (bool, error)
}

// Cluster answers the checks that need the network.
type Cluster interface {
	// Certificate returns the Node of the agent's certificate and the period of its validity.
	Certificate() (node string, from, to time.Time, err error)
	// Mac reads the Mac from the cluster, with the agent's credentials.
	Mac(ctx context.Context, node string) (Mac, error)
	// Registries returns the hosts of the images in the catalogue.
	Registries(ctx context.Context) ([]string, error)
	// Reach returns an error if a registry does not respond.
	Reach(ctx context.Context, registry string) error
}

// Mac is the cluster's view of the Mac.
type Mac struct {
	Server string
	// Skew is the lead of this Mac's clock over the server's.
	Skew         time.Duration
	SerialNumber string
	Phase        string
	Quarantine   string
}

// Doctor runs the checks.
type Doctor struct {
	StateDir string
	VMBinary string
	// UID is the user that the agent runs as.
	UID     int
	Host    Host
	Storage Storage
	Cluster Cluster
	Clock   clock.PassiveClock
	// SerialNumber is that of this Mac; empty if unknown.
	SerialNumber string

	results []Result
	check   string
}

// checkTimeout bounds one check, because a command or a server may hang.
const checkTimeout = 20 * time.Second

// Run runs all checks. Checks that do not apply are reported as skipped.
func (d *Doctor) Run(ctx context.Context) []Result {
	d.results = nil
	system, arch := d.Host.Platform()
	mac := system == "darwin"
	for _, c := range []struct {
		name  string
		onMac bool
		run   func(context.Context)
	}{
		{"macos", true, d.macOS},
		{"user", false, d.user},
		{"login-session", true, d.loginSession},
		{"entitlement", true, d.entitlement},
		{"launchd-jobs", true, d.jobs},
		{"auto-login", true, d.autoLogin},
		{"sleep", true, d.sleep},
		{"reboot", true, d.reboot},
		{"guest-addresses", true, d.guestAddresses},
		{"settings", true, d.settings},
		{"state-dir", false, d.stateDir},
		{"disk", false, d.disk},
		{"clone", false, d.clone},
		{"certificate", false, d.certificate},
		{"server", false, d.server},
		{"registry", false, d.registry},
		{"leftovers", false, d.leftovers},
		{"foreign-vms", true, d.foreignVMs},
	} {
		d.check = c.name
		if c.onMac && !mac {
			d.say(Skip, "", "not checked: this is %s/%s, not a Mac", system, arch)
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		c.run(bounded)
		cancel()
	}
	return d.results
}

// Worst returns the worst status of the results: Fail, Warn or OK.
func Worst(results []Result) Status {
	worst := OK
	for _, r := range results {
		switch r.Status {
		case Fail:
			return Fail
		case Warn:
			worst = Warn
		}
	}
	return worst
}

func (d *Doctor) say(status Status, advice, format string, args ...any) {
	d.results = append(d.results, Result{Check: d.check, Status: status, Message: fmt.Sprintf(format, args...), Advice: advice})
}

// unknown reports a failed query of the system.
func (d *Doctor) unknown(err error) { d.say(Warn, "", "check failed: %v", err) }

func (d *Doctor) path(elem ...string) string {
	return filepath.Join(append([]string{d.StateDir}, elem...)...)
}
