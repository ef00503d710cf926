package agent

import (
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
)

// Confine takes from this process and what it starts all files but the system's
// programs, which it may read, and dirs, which it may write; all TCP; and, where the
// kernel can, signals to processes outside. It cannot be undone. It is for simulated
// guests, whose commands run on the host: it protects a developer's machine from
// mistakes, and is no boundary between tenants (other unix sockets and UDP are open,
// for two).
func Confine(dirs ...string) error {
	rules := []landlock.Rule{
		landlock.RODirs("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl").IgnoreIfMissing(),
		landlock.ROFiles("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/profile", "/dev/random", "/dev/urandom", "/dev/zero").IgnoreIfMissing(),
		landlock.RWDirs(dirs...),
	}
	devices := landlock.RWFiles("/dev/null", "/dev/tty", "/dev/ptmx").IgnoreIfMissing()
	terminals := landlock.RWDirs("/dev/pts").IgnoreIfMissing()
	if err := landlock.V6.Restrict(append(rules, devices.WithIoctlDev(), terminals.WithIoctlDev())...); err == nil {
		return nil
	}
	if err := landlock.V4.Restrict(append(rules, devices, terminals)...); err != nil {
		return fmt.Errorf("confine commands (Landlock, Linux 6.7 or newer): %w", err)
	}
	return nil
}
