//go:build darwin && arm64 && cgo

package vz

import (
	"net"

	"github.com/Code-Hex/vz/v3"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/runner"
)

// networkDevice returns the network device of a virtual machine. The device of an isolated network
// belongs to the runner, which closes it after the virtual machine has ended.
func networkDevice(network *contract.Network, mac net.HardwareAddr, device runner.Device) (*vz.VirtioNetworkDeviceConfiguration, error) {
	attachment, err := networkAttachment(network, device)
	if err != nil {
		return nil, err
	}
	config, err := vz.NewVirtioNetworkDeviceConfiguration(attachment)
	if err != nil {
		return nil, err
	}
	address, err := vz.NewMACAddress(mac)
	if err != nil {
		return nil, err
	}
	config.SetMACAddress(address)
	return config, nil
}

func networkAttachment(network *contract.Network, device runner.Device) (vz.NetworkDeviceAttachment, error) {
	if !network.Isolated() {
		return vz.NewNATNetworkDeviceAttachment()
	}
	file, err := device()
	if err != nil {
		return nil, err
	}
	return vz.NewFileHandleNetworkDeviceAttachment(file)
}
