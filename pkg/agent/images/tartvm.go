package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"macrack.io/macrack/pkg/images/format"
)

// Files of a virtual machine of tart.
const (
	tartConfig    = "config.json"
	tartDisk      = "disk.img"
	tartNVRAM     = "nvram.bin"
	tartSuspended = "state.vzvmsave"
)

// tartVersion is the version of config.json that this package knows.
const tartVersion = 1

// tartVM is the relevant part of config.json.
type tartVM struct {
	Version       int    `json:"version"`
	OS            string `json:"os"`
	Arch          string `json:"arch"`
	DiskFormat    string `json:"diskFormat"`
	HardwareModel string `json:"hardwareModel"`
	ECID          string `json:"ecid"` // the machine identifier
}

// TartDir returns the directory of a virtual machine of tart: nameOrDir if it is a path, otherwise
// that of the name in home (TART_HOME; ~/.tart by default).
func TartDir(home, nameOrDir string) (string, error) {
	if nameOrDir == "" {
		return "", errors.New("the name of the virtual machine is empty")
	}
	if strings.ContainsRune(nameOrDir, filepath.Separator) || nameOrDir == "." || nameOrDir == ".." {
		return filepath.Clean(nameOrDir), nil
	}
	dir := filepath.Join(home, "vms", nameOrDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("tart has no virtual machine %q in %s; see \"tart list --source local\", or use a path such as ./%s", nameOrDir, filepath.Dir(dir), nameOrDir)
	}
	return dir, nil
}

// UseTartVM sets the disk, the auxiliary storage, the hardware model and the machine identifier of
// a push to those of the virtual machine in dir. It refuses a virtual machine that MacRack cannot
// run.
func (o *PushOptions) UseTartVM(dir string) error {
	vm, err := readTartVM(dir)
	if err != nil {
		return err
	}
	for _, name := range []string{tartDisk, tartNVRAM} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s is no complete virtual machine of tart: %w", dir, err)
		}
	}
	switch {
	case vm.Version != tartVersion:
		err = fmt.Errorf("has version %d of %s, and only version %d is known", vm.Version, tartConfig, tartVersion)
	case vm.OS != "" && vm.OS != "darwin":
		err = fmt.Errorf("runs %q; MacRack runs macOS (\"darwin\")", vm.OS)
	case vm.Arch != "" && vm.Arch != "arm64":
		err = fmt.Errorf("is for %q; MacRack runs on arm64", vm.Arch)
	case strings.EqualFold(vm.DiskFormat, "asif"):
		err = errors.New("has an Apple sparse image (ASIF) as its disk; convert it with: diskutil image create from --format raw, or create the virtual machine again with: tart create --disk-format raw")
	case vm.DiskFormat != "" && vm.DiskFormat != "raw":
		err = fmt.Errorf("has a disk of format %q; only raw disks can be pushed", vm.DiskFormat)
	case vm.HardwareModel == "":
		err = fmt.Errorf("has no hardwareModel in %s, and no virtual machine starts without one", tartConfig)
	default:
		err = errors.Join(inspectHardwareModel(vm.HardwareModel), inspectMachineID(vm.ECID))
	}
	if err != nil {
		return fmt.Errorf("virtual machine %s: %w", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, tartSuspended)); err == nil {
		return fmt.Errorf("virtual machine %s is suspended; run it and shut it down first", dir)
	}
	o.Disk, o.Aux, o.HardwareModel = filepath.Join(dir, tartDisk), filepath.Join(dir, tartNVRAM), vm.HardwareModel
	o.MachineID = vm.ECID
	return nil
}

// readTartVM reads config.json of a virtual machine that does not run.
func readTartVM(dir string) (*tartVM, error) {
	path := filepath.Join(dir, tartConfig)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, fmt.Errorf("%s is no virtual machine of tart: %w", dir, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > format.MaxConfig {
		return nil, fmt.Errorf("%s is not a config of tart; use a file of at most %d bytes", path, format.MaxConfig)
	}
	running, err := locked(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if running {
		return nil, fmt.Errorf("virtual machine %s is running; shut it down first", dir)
	}
	data, err := io.ReadAll(io.LimitReader(f, format.MaxConfig))
	if err != nil {
		return nil, err
	}
	vm := &tartVM{}
	if err := json.Unmarshal(data, vm); err != nil {
		return nil, fmt.Errorf("%s is not a config of tart: %w", path, err)
	}
	return vm, nil
}

// locked reports whether another process has locked a file, as tart does with the config of a
// running virtual machine.
func locked(f *os.File) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock)
	return err == nil && lock.Type != unix.F_UNLCK, err
}
