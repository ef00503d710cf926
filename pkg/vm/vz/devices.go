//go:build darwin && arm64 && cgo

package vz

import (
	"errors"

	"github.com/Code-Hex/vz/v3"

	"macrack.io/macrack/pkg/vm/contract"
)

// defaultDisplay is the default display. macOS requires a display even on a headless host.
var defaultDisplay = contract.Display{Width: 1920, Height: 1200, PixelsPerInch: 144}

// disk returns the disk of a guest. It is cached, because the automatic mode has corrupted the file
// systems of macOS guests under load.
func disk(path string, synchronization vz.DiskImageSynchronizationMode) (*vz.VirtioBlockDeviceConfiguration, error) {
	image, err := vz.NewDiskImageStorageDeviceAttachmentWithCacheAndSync(path, false, vz.DiskImageCachingModeCached, synchronization)
	if err != nil {
		return nil, err
	}
	return vz.NewVirtioBlockDeviceConfiguration(image)
}

func graphics(display *contract.Display) (*vz.MacGraphicsDeviceConfiguration, error) {
	if display == nil {
		display = &defaultDisplay
	}
	device, err := vz.NewMacGraphicsDeviceConfiguration()
	if err != nil {
		return nil, err
	}
	density := display.PixelsPerInch
	if density == 0 {
		density = defaultDisplay.PixelsPerInch
	}
	screen, err := vz.NewMacGraphicsDisplayConfiguration(int64(display.Width), int64(display.Height), int64(density))
	if err != nil {
		return nil, err
	}
	device.SetDisplays(screen)
	return device, nil
}

// keyboards returns the keyboards of a guest. A guest with macOS 14 or later uses the Mac keyboard,
// an older one the USB keyboard.
func keyboards() ([]vz.KeyboardConfiguration, error) {
	usb, err := vz.NewUSBKeyboardConfiguration()
	if err != nil {
		return nil, err
	}
	mac, err := vz.NewMacKeyboardConfiguration()
	switch {
	case unsupported(err):
		return []vz.KeyboardConfiguration{usb}, nil
	case err != nil:
		return nil, err
	}
	return []vz.KeyboardConfiguration{mac, usb}, nil
}

// pointingDevices returns the pointing devices of a guest. A guest with macOS 13 or later uses the
// trackpad, an older one the USB device.
func pointingDevices() ([]vz.PointingDeviceConfiguration, error) {
	usb, err := vz.NewUSBScreenCoordinatePointingDeviceConfiguration()
	if err != nil {
		return nil, err
	}
	trackpad, err := vz.NewMacTrackpadConfiguration()
	switch {
	case unsupported(err):
		return []vz.PointingDeviceConfiguration{usb}, nil
	case err != nil:
		return nil, err
	}
	return []vz.PointingDeviceConfiguration{trackpad, usb}, nil
}

// unsupported reports whether err means that this Mac's macOS is too old for a device.
func unsupported(err error) bool {
	return errors.Is(err, vz.ErrUnsupportedOSVersion) || errors.Is(err, vz.ErrBuildTargetOSVersion)
}

// silentSound returns a sound device whose output is discarded.
func silentSound() (*vz.VirtioSoundDeviceConfiguration, error) {
	stream, err := vz.NewVirtioSoundDeviceOutputStreamConfiguration()
	if err != nil {
		return nil, err
	}
	device, err := vz.NewVirtioSoundDeviceConfiguration()
	if err != nil {
		return nil, err
	}
	device.SetStreams(stream)
	return device, nil
}
