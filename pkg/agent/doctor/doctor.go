// Package doctor checks whether a Mac can do what its agent will ask of it, and says what to do where it cannot.
package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

// Status is how a check ended.
type Status string

const (
	// OK: nothing to do.
	OK Status = "ok"
	// Warn: it works, and something is to be looked at.
	Warn Status = "warn"
	// Fail: the agent cannot do its work.
	Fail Status = "fail"
	// Skip: it was not checked; the message says why.
	Skip Status = "skip"
)

// Result is what a check found.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Message is what was found.
	Message string `json:"message"`
	// Advice is what to do about it; empty if there is nothing.
	Advice string `json:"advice,omitempty"`
}

// Host is what the checks of a Mac ask the system.
type Host interface {
	// Platform returns GOOS and GOARCH.
	Platform() (system, arch string)
	MacOSVersion(ctx context.Context) (string, error)
	// Entitled says whether a program is signed with an entitlement.
	Entitled(ctx context.Context, program, entitlement string) (bool, error)
	// ConsoleUID is the user who is logged in at the screen; 0 for nobody.
	ConsoleUID(ctx context.Context) (int, error)
	// AutoLogin is the name of the user who is logged in after a boot; empty for nobody.
	AutoLogin(ctx context.Context) (string, error)
	FileVault(ctx context.Context) (bool, error)
	// Sleeps says whether the Mac goes to sleep by itself.
	Sleeps(ctx context.Context) (bool, error)
	JobLoaded(ctx context.Context, domain, label string) (bool, error)
	// VirtualMachines counts the processes of Virtualization.framework, whoever started them.
	VirtualMachines(ctx context.Context) (int, error)
	MayReboot(ctx context.Context) (bool, error)
	// AddressLease is for how long a guest behind the Mac's NAT keeps its address.
	AddressLease(ctx context.Context) (time.Duration, error)
}

// Storage is what the checks ask the file system of the agent's state.
type Storage interface {
	// Owner returns the owner and the permissions of a file.
	Owner(path string) (uid int, mode uint32, err error)
	Free(path string) (int64, error)
	// CanClone says whether files in a directory can share their blocks.
	CanClone(dir string) (bool, error)
	// Locked says whether a process has the lock on a file.
	Locked(lockFile string) (bool, error)
	// Answers says whether a process listens at a unix socket.
	Answers(socket string) (bool, error)
}

// Cluster is what the checks ask over the network.
type Cluster interface {
	// Certificate returns whose certificate the agent has, and from when to when it is valid.
	Certificate() (node string, from, to time.Time, err error)
	// Mac asks the cluster about the Mac as its agent does.
	Mac(ctx context.Context, node string) (Mac, error)
	// Registries returns the hosts of the images in the catalogue.
	Registries(ctx context.Context) ([]string, error)
	// Reach says whether a registry answers.
	Reach(ctx context.Context, registry string) error
}

// Mac is what the cluster has on a Mac.
type Mac struct {
	Server string
	// Skew is by how much this Mac's clock is ahead of the server's.
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
	// SerialNumber of this Mac; empty if it is not known.
	SerialNumber string

	results []Result
	check   string
}

// checkTimeout bounds one check: a command or a server may hang.
const checkTimeout = 20 * time.Second

// Run runs all checks. It says what it did not check, too.
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

// Worst is the worst of the results: Fail, Warn or OK.
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

// unknown is said when the system does not answer.
func (d *Doctor) unknown(err error) { d.say(Warn, "", "could not be checked: %v", err) }

func (d *Doctor) path(elem ...string) string {
	return filepath.Join(append([]string{d.StateDir}, elem...)...)
}
