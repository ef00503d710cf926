// Package sim simulates a Mac: a host with a serial number, a boot ID and a kernel that runs at
// most two macOS VMs. Its guests boot, respond, crash and hang. It shares no code with the agent's
// slots, so that its counts are independent evidence.
package sim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
)

// kernelLimit is the limit of the simulated macOS kernel. It is a fact of macOS and deliberately
// independent of the rules.
const kernelLimit = 2

// HostDir is the state of one simulated Mac, shared by its agent and its VMs:
//
//	boot-id          changes when the Mac reboots
//	serial-number
//	guest.json       contract.Simulation for VMs without one in their spec
//	vms/N.lock       flock held by the process of a running VM
//	vms/N.leaked     the boot ID in which the kernel lost track of slot N
//	leak-on-start    if it exists, each VM that starts leaks its kernel slot
type HostDir string

func (h HostDir) path(name string) string { return filepath.Join(string(h), name) }

// Init creates the missing files of the host.
func (h HostDir) Init(serialNumber, bootID string) error {
	if err := os.MkdirAll(h.path("vms"), 0o700); err != nil {
		return err
	}
	for name, value := range map[string]string{"serial-number": serialNumber, "boot-id": bootID} {
		if _, err := os.Stat(h.path(name)); errors.Is(err, fs.ErrNotExist) {
			if err := contract.WriteFile(h.path(name), []byte(value+"\n")); err != nil {
				return err
			}
		}
	}
	return nil
}

// BootID returns the ID of the current boot.
func (h HostDir) BootID() (string, error) { return h.read("boot-id") }

// SerialNumber returns the Mac's serial number.
func (h HostDir) SerialNumber() (string, error) { return h.read("serial-number") }

func (h HostDir) read(name string) (string, error) {
	data, err := os.ReadFile(h.path(name))
	return strings.TrimSpace(string(data)), err
}

// Reboot assigns the host a new boot ID, which clears leaked kernel slots. The caller must end the
// processes of running VMs.
func (h HostDir) Reboot(bootID string) error {
	return contract.WriteFile(h.path("boot-id"), []byte(bootID+"\n"))
}

// SetGuest sets the behavior of guests that start from now on.
func (h HostDir) SetGuest(s contract.Simulation) error {
	return contract.WriteJSON(h.path("guest.json"), s)
}

// LeakOnStart makes every VM that starts from now on leak its kernel slot when it
// ends, until called with false or a reboot.
func (h HostDir) LeakOnStart(leak bool) error {
	if leak {
		return contract.WriteFile(h.path("leak-on-start"), nil)
	}
	return contract.RemoveFile(h.path("leak-on-start"))
}

// Leak makes the kernel lose track of n of its slots, until a reboot.
func (h HostDir) Leak(n int) error {
	for i := range min(n, kernelLimit) {
		if err := h.leak(i); err != nil {
			return err
		}
	}
	return nil
}

func (h HostDir) leak(slot int) error {
	bootID, err := h.BootID()
	if err != nil {
		return err
	}
	return contract.WriteFile(h.vm(slot, "leaked"), []byte(bootID+"\n"))
}

func (h HostDir) vm(slot int, suffix string) string {
	return h.path(fmt.Sprintf("vms/%d.%s", slot, suffix))
}

// StartVM counts one more VM of the calling process. The VM ends when stop is called or the process
// exits. Beyond the limit, StartVM returns the error of macOS.
func (h HostDir) StartVM() (stop func(), err error) {
	kernel, err := h.enterKernel()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	bootID, err := h.BootID()
	if err != nil {
		return nil, err
	}
	for i := range kernelLimit {
		lock, err := contract.TryLockFile(h.vm(i, "lock"))
		if errors.Is(err, contract.ErrLocked) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if leakedIn, err := os.ReadFile(h.vm(i, "leaked")); err == nil && strings.TrimSpace(string(leakedIn)) == bootID {
			lock.Unlock()
			continue
		}
		if _, err := os.Stat(h.path("leak-on-start")); err == nil {
			if err := h.leak(i); err != nil {
				lock.Unlock()
				return nil, err
			}
		}
		return lock.Unlock, nil
	}
	faults.At("kernel: refused")
	return nil, &contract.Error{
		Domain:  contract.VZErrorDomain,
		Code:    contract.VZErrorCodeLimitExceeded,
		Message: "The maximum supported number of active virtual machines has been reached.",
	}
}

// enterKernel serializes access to the VMs' locks, so that a check of a lock is never mistaken for
// a running VM.
func (h HostDir) enterKernel() (io.Closer, error) {
	f, err := os.OpenFile(h.path("vms/kernel.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); {
		case err == nil:
			return f, nil
		case !errors.Is(err, syscall.EINTR):
			_ = f.Close()
			return nil, err
		}
	}
}

// RunningVMs counts the VMs of live processes, including those of other programs.
func (h HostDir) RunningVMs() (int, error) {
	kernel, err := h.enterKernel()
	if err != nil {
		return 0, err
	}
	defer kernel.Close()
	running := 0
	for i := range kernelLimit {
		lock, err := contract.TryLockFile(h.vm(i, "lock"))
		if errors.Is(err, contract.ErrLocked) {
			running++
			continue
		}
		if err != nil {
			return 0, err
		}
		lock.Unlock()
	}
	return running, nil
}

// SetLoggedOut ends or starts the login session of the simulated Mac.
func (h HostDir) SetLoggedOut(out bool) error {
	if out {
		return os.WriteFile(h.path("logged-out"), nil, 0o600)
	}
	return os.RemoveAll(h.path("logged-out"))
}

// LoggedOut reports whether no user is logged in.
func (h HostDir) LoggedOut() bool {
	_, err := os.Stat(h.path("logged-out"))
	return err == nil
}
