package images

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	"macrack.io/macrack/pkg/images/format"
)

// foreignDisks are the magic numbers of disk formats other than raw.
var foreignDisks = []struct{ magic, name, remedy string }{
	{"QFI\xfb", "a qcow2 disk", "convert it with: qemu-img convert -O raw"},
	{"shdw", "an Apple sparse image (ASIF)", "convert it with: diskutil image create from --format raw"},
	{"sprs", "an Apple sparse image", "convert it with: hdiutil convert -format UDTO"},
	{"KDMV", "a VMDK disk", "convert it with: qemu-img convert -O raw"},
	{"# Disk DescriptorFile", "a VMDK descriptor", "convert the disk that it describes with: qemu-img convert -O raw"},
	{"vhdxfile", "a VHDX disk", "convert it with: qemu-img convert -O raw"},
	{"conectix", "a VHD disk", "convert it with: qemu-img convert -O raw"},
	{"<<< ", "a VDI disk", "convert it with: qemu-img convert -O raw"},
	{"\x1f\x8b", "compressed with gzip", "decompress it first"},
	{"\x28\xb5\x2f\xfd", "compressed with Zstandard", "decompress it first"},
	{"\xfd7zXZ\x00", "compressed with xz", "decompress it first"},
	{"\x04\x22\x4d\x18", "compressed with LZ4", "decompress it first"},
	{"bv4", "compressed with Apple LZ4", "decompress it first"},
	{"PK\x03\x04", "a ZIP archive", "unpack it first"},
}

// udifTrailer starts the last 512 bytes of a macOS disk image (.dmg).
const udifTrailer = "koly"

// Inspect checks the input of a push without the registry, and returns the size of the disk in
// bytes.
func Inspect(opts PushOptions) (diskSize int64, err error) {
	diskSize, diskErr := inspectDisk(opts.Disk)
	return diskSize, errors.Join(diskErr, inspectAux(opts.Aux), inspectHardwareModel(opts.HardwareModel), inspectMachineID(opts.MachineID))
}

func inspectMachineID(id string) error {
	if _, err := base64.StdEncoding.DecodeString(id); err != nil {
		return fmt.Errorf("the machine identifier is not base64: %w", err)
	}
	return nil
}

func inspectHardwareModel(model string) error {
	if model == "" {
		return errors.New("the hardware model is missing; use the dataRepresentation of the VZMacHardwareModel, in base64")
	}
	if _, err := base64.StdEncoding.DecodeString(model); err != nil {
		return fmt.Errorf("the hardware model is not base64: %w", err)
	}
	return nil
}

func inspectAux(path string) error {
	if path == "" {
		return errors.New("the auxiliary storage (NVRAM) is missing; a virtual machine cannot start without it")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("auxiliary storage: %w", err)
	case !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > format.MaxAux:
		return fmt.Errorf("%s is not an auxiliary storage; use a file of 1 to %d bytes", path, format.MaxAux)
	}
	f, err := os.Open(path) // checks the permissions
	if err != nil {
		return fmt.Errorf("auxiliary storage: %w", err)
	}
	return f.Close()
}

func inspectDisk(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size == 0 {
		return 0, fmt.Errorf("%s is an empty file, a folder or a device, not a disk image", path)
	}
	read := func(offset int64, length int) ([]byte, error) {
		part := make([]byte, length)
		n, err := f.ReadAt(part, offset)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return part[:n], err
	}
	beginning, err := read(0, 64)
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	trailer, err := read(max(0, size-512), len(udifTrailer))
	if err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	for _, foreign := range foreignDisks {
		if bytes.HasPrefix(beginning, []byte(foreign.magic)) {
			return 0, fmt.Errorf("%s is %s, not a raw disk; %s", path, foreign.name, foreign.remedy)
		}
	}
	if string(trailer) == udifTrailer {
		return 0, fmt.Errorf("%s is a compressed disk image (UDIF), not a raw disk; convert it with: hdiutil convert -format UDTO", path)
	}
	return size, nil
}
