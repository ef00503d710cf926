//go:build darwin && arm64 && cgo

package vz

import "github.com/Code-Hex/vz/v3"

// tartPort is the name of a serial port by which tart's guest agent recognizes its host: version 2
// or later. Without the port, the agent assumes another hypervisor and ends the process that
// started it, which is launchd.
const tartPort = "tart-version-2.32.1"

// addTartPort adds the port, which carries no data, to a virtual machine.
func addTartPort(config *vz.VirtualMachineConfiguration) error {
	port, err := vz.NewVirtioConsolePortConfiguration(vz.WithVirtioConsolePortConfigurationName(tartPort))
	if err != nil {
		return err
	}
	device, err := vz.NewVirtioConsoleDeviceConfiguration()
	if err != nil {
		return err
	}
	device.SetVirtioConsolePortConfiguration(0, port)
	config.SetConsoleDevicesVirtualMachineConfiguration([]vz.ConsoleDeviceConfiguration{device})
	return nil
}
