//go:build darwin && arm64 && cgo

package vz

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"github.com/Code-Hex/vz/v3"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/keychain"
	"macrack.io/macrack/pkg/vm/netaddr"
	"macrack.io/macrack/pkg/vm/runner"
)

const (
	// dhcpLeases is the lease file of macOS' DHCP server for NAT networks.
	dhcpLeases = "/var/db/dhcpd_leases"
	// causeTimeout is how long the cause of a stop may arrive after the state: the framework
	// reports them separately.
	causeTimeout = time.Second
)

// Backend creates virtual machines.
type Backend struct {
	Clock clock.PassiveClock
}

// NewMachineID returns a new machine identifier, as base64.
func NewMachineID() (string, error) {
	id, err := vz.NewMacMachineIdentifier()
	if err != nil {
		return "", convert(err)
	}
	// The bytes belong to the framework: they are copied before id can be collected.
	data := bytes.Clone(id.DataRepresentation())
	return base64.StdEncoding.EncodeToString(data), nil
}

// NewMachine implements runner.Backend.
func (b *Backend) NewMachine(spec *contract.Spec, dir contract.SlotDir, console *runner.Console, device runner.Device) (runner.Machine, error) {
	mac, err := net.ParseMAC(spec.MACAddress)
	if err != nil {
		return nil, err
	}
	config, err := configure(spec, dir, mac, device)
	if err != nil {
		return nil, convert(err)
	}
	vm, err := vz.NewVirtualMachine(config)
	if err != nil {
		return nil, convert(err)
	}
	return &machine{spec: spec, mac: mac, clock: b.Clock, vm: vm, console: console, ended: make(chan struct{})}, nil
}

func configure(spec *contract.Spec, dir contract.SlotDir, mac net.HardwareAddr, device runner.Device) (*vz.VirtualMachineConfiguration, error) {
	bootLoader, err := vz.NewMacOSBootLoader()
	if err != nil {
		return nil, err
	}
	config, err := vz.NewVirtualMachineConfiguration(bootLoader, uint(spec.CPU), uint64(spec.MemoryBytes))
	if err != nil {
		return nil, err
	}
	platform, err := platform(spec, dir)
	if err != nil {
		return nil, err
	}
	config.SetPlatformVirtualMachineConfiguration(platform)

	synchronization := vz.DiskImageSynchronizationModeFsync
	if spec.Synchronization == contract.SynchronizationNone {
		synchronization = vz.DiskImageSynchronizationModeNone
	}
	disk, err := disk(dir.DiskPath(), synchronization)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	config.SetStorageDevicesVirtualMachineConfiguration([]vz.StorageDeviceConfiguration{disk})

	network, err := networkDevice(&spec.Network, mac, device)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	config.SetNetworkDevicesVirtualMachineConfiguration([]*vz.VirtioNetworkDeviceConfiguration{network})

	graphics, err := graphics(spec.Display)
	if err != nil {
		return nil, err
	}
	config.SetGraphicsDevicesVirtualMachineConfiguration([]vz.GraphicsDeviceConfiguration{graphics})
	keyboards, err := keyboards()
	if err != nil {
		return nil, err
	}
	config.SetKeyboardsVirtualMachineConfiguration(keyboards)
	pointers, err := pointingDevices()
	if err != nil {
		return nil, err
	}
	config.SetPointingDevicesVirtualMachineConfiguration(pointers)
	sound, err := silentSound()
	if err != nil {
		return nil, err
	}
	config.SetAudioDevicesVirtualMachineConfiguration([]vz.AudioDeviceConfiguration{sound})

	if err := addShares(config, spec.Shares); err != nil {
		return nil, fmt.Errorf("shared directories: %w", err)
	}

	socket, err := vz.NewVirtioSocketDeviceConfiguration()
	if err != nil {
		return nil, err
	}
	config.SetSocketDevicesVirtualMachineConfiguration([]vz.SocketDeviceConfiguration{socket})
	if err := addTartPort(config); err != nil {
		return nil, err
	}
	entropy, err := vz.NewVirtioEntropyDeviceConfiguration()
	if err != nil {
		return nil, err
	}
	config.SetEntropyDevicesVirtualMachineConfiguration([]*vz.VirtioEntropyDeviceConfiguration{entropy})

	if valid, err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	} else if !valid {
		return nil, errors.New("configuration is not valid")
	}
	return config, nil
}

// platform creates the virtual Mac: its model, its identity and its NVRAM.
func platform(spec *contract.Spec, dir contract.SlotDir) (*vz.MacPlatformConfiguration, error) {
	id, err := base64.StdEncoding.DecodeString(spec.MachineID)
	if err != nil {
		return nil, fmt.Errorf("machineID: %w", err)
	}
	machineID, err := vz.NewMacMachineIdentifierWithData(id)
	if err != nil {
		return nil, fmt.Errorf("machineID: %w", err)
	}
	modelData, err := base64.StdEncoding.DecodeString(spec.HardwareModel)
	if err != nil {
		return nil, fmt.Errorf("hardwareModel: %w", err)
	}
	if len(modelData) == 0 {
		return nil, errors.New("hardwareModel: the image has none; push it again with --hardware-model")
	}
	model, err := vz.NewMacHardwareModelWithData(modelData)
	if err != nil {
		return nil, fmt.Errorf("hardwareModel: %w", err)
	}
	if !model.Supported() {
		return nil, errors.New("hardwareModel: this Mac's macOS does not support it; update the host, or use an older image")
	}
	// A new auxiliary storage could not boot the disk: it lacks what macOS' installer wrote.
	aux, err := vz.NewMacAuxiliaryStorage(dir.AuxPath())
	if err != nil {
		return nil, fmt.Errorf("auxiliary storage: %w", err)
	}
	return vz.NewMacPlatformConfiguration(vz.WithMacHardwareModel(model), vz.WithMacMachineIdentifier(machineID), vz.WithMacAuxiliaryStorage(aux))
}

// convert turns the framework's error into a contract.Error with domain and code. The vz package
// does not export its codes as errors.
func convert(err error) error {
	var ns *vz.NSError
	if !errors.As(err, &ns) {
		return err
	}
	return &contract.Error{Domain: ns.Domain, Code: ns.Code, Message: err.Error()}
}

type machine struct {
	spec    *contract.Spec
	mac     net.HardwareAddr
	clock   clock.PassiveClock
	vm      *vz.VirtualMachine
	console *runner.Console

	ended chan struct{}
	err   error // valid once ended is closed
}

func (m *machine) Start(ctx context.Context) error {
	if err := m.vm.Start(); err != nil {
		return keychain.Security{}.Explain(ctx, convert(err))
	}
	m.console.Printf("started with %d CPUs, machine ID %s, MAC address %s", m.spec.CPU, m.spec.MachineID, m.mac)
	go m.follow()
	return nil
}

// follow is the only reader of the framework's state changes, which arrive on one queue.
func (m *machine) follow() {
	defer close(m.ended)
	for state := range m.vm.StateChangedNotify() {
		m.console.Printf("state %s", state)
		switch state {
		case vz.VirtualMachineStateStopped:
			m.err = m.cause(causeTimeout / 10)
			return
		case vz.VirtualMachineStateError:
			if m.err = m.cause(causeTimeout); m.err == nil {
				m.err = &contract.Error{Domain: contract.VZErrorDomain, Code: int(vz.ErrorInternal), Message: "the virtual machine stopped with an error of unknown cause"}
			}
			return
		}
	}
	m.err = errors.New("the hypervisor ended its state notifications")
}

// cause returns the error with which the framework stopped the virtual machine, or nil.
func (m *machine) cause(timeout time.Duration) error {
	select {
	case err := <-m.vm.DidStopWithError():
		return convert(err)
	case <-time.After(timeout):
		return nil
	}
}

func (m *machine) Wait() error {
	<-m.ended
	return m.err
}

func (m *machine) Kill() error { return convert(m.vm.Stop()) }

// Connect implements runner.Machine. The framework has no timeout and may not respond if the port
// is closed, so the runner bounds the wait.
func (m *machine) Connect(_ context.Context, port uint32) (net.Conn, error) {
	devices := m.vm.SocketDevices()
	if len(devices) == 0 {
		return nil, errors.New("the virtual machine has no socket device")
	}
	conn, err := devices[0].Connect(port)
	if err != nil {
		return nil, convert(err)
	}
	return conn, nil
}

// FindAddress implements runner.Machine.
func (m *machine) FindAddress(ctx context.Context) *contract.Address {
	if leases, err := os.ReadFile(dhcpLeases); err == nil {
		if address, ok := netaddr.FromDHCPLeases(bytes.NewReader(leases), m.mac, m.clock.Now()); ok {
			return m.found(address, contract.AddressFromDHCPLease)
		}
	}
	if table, err := exec.CommandContext(ctx, "/usr/sbin/arp", "-an").Output(); err == nil {
		if address, ok := netaddr.FromARP(bytes.NewReader(table), m.mac); ok {
			return m.found(address, contract.AddressFromARP)
		}
	}
	return nil
}

func (m *machine) found(address netip.Addr, source contract.AddressSource) *contract.Address {
	return &contract.Address{Value: address.String(), Source: source, ObservedAt: m.clock.Now()}
}
