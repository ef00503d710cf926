package agent

import (
	"fmt"
	"os"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	syscalls "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// confined marks the environment of a process that is confined.
const confined = "MACRACK_GUEST_AGENT_CONFINED"

// Confine confines this process and its children with Landlock. They may read the system's programs
// and the directories readable, and write to dirs. TCP is denied, and so are signals to processes
// outside, if the kernel supports it. In sockets they may create sockets. Confine then executes the
// same program again and returns only in the confined process: Landlock confines single threads,
// and one thread could not end the children of another.
//
// It is for simulated guests, whose commands run on the host. It protects a developer's machine
// from mistakes, and is not a boundary between tenants: other unix sockets and UDP remain open.
func Confine(sockets string, dirs, readable []string) error {
	if os.Getenv(confined) != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	rules := []landlock.Rule{
		landlock.RODirs("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl").IgnoreIfMissing(),
		landlock.ROFiles("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/profile", "/dev/random", "/dev/urandom", "/dev/zero").IgnoreIfMissing(),
		landlock.ROFiles(self),
		landlock.PathAccess(syscalls.AccessFSMakeSock, sockets),
		landlock.RWDirs(dirs...),
		landlock.RODirs(readable...),
	}
	devices := landlock.RWFiles("/dev/null", "/dev/tty", "/dev/ptmx").IgnoreIfMissing()
	terminals := landlock.RWDirs("/dev/pts").IgnoreIfMissing()
	if err := landlock.V6.Restrict(append(rules, devices.WithIoctlDev(), terminals.WithIoctlDev())...); err != nil {
		if err := landlock.V4.Restrict(append(rules, devices, terminals)...); err != nil {
			return fmt.Errorf("confine commands (Landlock, Linux 6.7 or newer): %w", err)
		}
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), confined+"=1"))
}
