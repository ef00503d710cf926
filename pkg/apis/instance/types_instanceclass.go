package instance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClass is a size of virtual machine. Its spec is immutable: a new size needs a new
// InstanceClass.
type InstanceClass struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec InstanceClassSpec
}

// InstanceClassSpec describes a size of virtual machine.
type InstanceClassSpec struct {
	Resources       InstanceClassResources
	Display         *Display
	Synchronization DiskSynchronization
	Network         Network
}

// DiskSynchronization is how a virtual disk treats a request of the guest to flush its data.
type DiskSynchronization string

const (
	// DiskSynchronizationFsync writes the data to the Mac's disk.
	DiskSynchronizationFsync DiskSynchronization = "Fsync"
	// DiskSynchronizationNone ignores the request.
	DiskSynchronizationNone DiskSynchronization = "None"
)

// InstanceClassResources are the resources of a virtual machine.
type InstanceClassResources struct {
	CPU     scalar.Quantity
	Memory  scalar.Quantity
	Storage scalar.Quantity
}

// Display is the display of a virtual machine.
type Display struct {
	Width         int32
	Height        int32
	PixelsPerInch int32
}

// NetworkMode is the kind of network of a virtual machine.
type NetworkMode string

const (
	// NetworkIsolated is a network of the virtual machine's own. It reaches public IPv4 addresses,
	// and the private ones that the RackConfig allows.
	NetworkIsolated NetworkMode = "Isolated"
	// NetworkNAT is the NAT of macOS, which is faster. The virtual machine reaches its Mac, the
	// other virtual machine on it, and the networks that the Mac reaches.
	NetworkNAT NetworkMode = "NAT"
)

// Network is the network of a virtual machine.
type Network struct {
	Mode   NetworkMode
	Limits *NetworkLimits
}

// NetworkLimits are the private destinations of isolated virtual machines.
type NetworkLimits struct {
	AllowedCIDRs []string
	AllowedNames []string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClassList is a list of InstanceClasses.
type InstanceClassList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []InstanceClass
}
