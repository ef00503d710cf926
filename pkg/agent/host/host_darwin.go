package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"macrack.io/macrack/pkg/agent/disk"
)

type mac struct {
	sudo
	stateDir string
}

// New returns the Mac that this process runs on.
func New(stateDir string) (Host, error) { return &mac{stateDir: stateDir}, nil }

func (m *mac) Info() (Info, error) {
	var info Info
	var errs []error
	text := func(name string) string {
		value, err := unix.Sysctl(name)
		errs = append(errs, err)
		return strings.TrimSpace(value)
	}
	info.ModelIdentifier = text("hw.model")
	info.BootID = text("kern.bootsessionuuid")
	cpu, err := unix.SysctlUint32("hw.ncpu")
	errs = append(errs, err)
	memory, err := unix.SysctlUint64("hw.memsize")
	errs = append(errs, err)
	info.CPU, info.Memory = int64(cpu), int64(memory)
	info.SerialNumber, err = serialNumber()
	errs = append(errs, err)
	info.MacOSVersion, err = productVersion(run)
	errs = append(errs, err)
	info.FreeStorage, err = disk.Free(m.stateDir)
	errs = append(errs, err)
	info.Storage, err = disk.Size(m.stateDir)
	errs = append(errs, err)
	return info, errors.Join(errs...)
}

var serialPattern = regexp.MustCompile(`"IOPlatformSerialNumber" = "([^"]+)"`)

func serialNumber() (string, error) {
	out, err := run("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice")
	if err != nil {
		return "", fmt.Errorf("ioreg: %w", err)
	}
	match := serialPattern.FindSubmatch(out)
	if match == nil {
		return "", errors.New("ioreg shows no IOPlatformSerialNumber")
	}
	return string(match[1]), nil
}

// LoginSession implements SessionChecker. The console belongs to the user who is logged in, and
// otherwise to root.
func (m *mac) LoginSession() error {
	info, err := os.Stat("/dev/console")
	if err != nil {
		return nil // unknown is not missing
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Getuid() {
		return fmt.Errorf("the agent's user %d is not logged in at the screen (the console belongs to user %d); log it in, or enable automatic login", os.Getuid(), stat.Uid)
	}
	return nil
}

func run(name string, args ...string) ([]byte, error) { return exec.Command(name, args...).Output() }
