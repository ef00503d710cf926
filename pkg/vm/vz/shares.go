//go:build darwin && arm64 && cgo

package vz

import (
	"github.com/Code-Hex/vz/v3"

	"macrack.io/macrack/pkg/vm/contract"
)

// addShares shares directories with the guest. macOS mounts them in /Volumes/My Shared Files.
func addShares(config *vz.VirtualMachineConfiguration, shares []contract.Share) error {
	if len(shares) == 0 {
		return nil
	}
	directories := map[string]*vz.SharedDirectory{}
	for _, share := range shares {
		directory, err := vz.NewSharedDirectory(share.Path, share.ReadOnly)
		if err != nil {
			return err
		}
		directories[share.Name] = directory
	}
	share, err := vz.NewMultipleDirectoryShare(directories)
	if err != nil {
		return err
	}
	tag, err := vz.MacOSGuestAutomountTag()
	if err != nil {
		return err
	}
	device, err := vz.NewVirtioFileSystemDeviceConfiguration(tag)
	if err != nil {
		return err
	}
	device.SetDirectoryShare(share)
	config.SetDirectorySharingDevicesVirtualMachineConfiguration([]vz.DirectorySharingDeviceConfiguration{device})
	return nil
}
