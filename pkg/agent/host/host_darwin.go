package host

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

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

func run(name string, args ...string) ([]byte, error) { return exec.Command(name, args...).Output() }
