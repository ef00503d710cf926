package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClass is a size of virtual machine. Its spec is immutable: a new size needs a new
// InstanceClass.
type InstanceClass struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the size of the virtual machine.
	Spec InstanceClassSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
}

// InstanceClassSpec describes a size of virtual machine.
type InstanceClassSpec struct {
	// resources are the resources of the virtual machine.
	Resources InstanceClassResources `json:"resources" protobuf:"bytes,1,opt,name=resources"`
	// display is the display of the virtual machine. Defaults to 1920 x 1200 at 144 pixels per
	// inch.
	// +optional
	Display *Display `json:"display,omitempty" protobuf:"bytes,2,opt,name=display"`
	// synchronization is how the virtual disk treats a request of the guest to flush its data:
	// Fsync, the default, writes it to the Mac's disk, and None ignores the request. None is
	// faster, and a power loss of the Mac can damage the disk of the virtual machine, which ends
	// anyway.
	// +optional
	Synchronization DiskSynchronization `json:"synchronization,omitempty" protobuf:"bytes,3,opt,name=synchronization,casttype=DiskSynchronization"`
	// network is the network of the virtual machine.
	// +optional
	Network Network `json:"network,omitempty" protobuf:"bytes,4,opt,name=network"`
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
	// cpu is the number of CPU cores, such as 4. Must be a whole number.
	CPU scalar.Quantity `json:"cpu,omitzero" protobuf:"bytes,1,opt,name=cpu"`
	// memory is the amount of memory in bytes, such as 8Gi or 8192Mi. Must be a multiple of 1Mi.
	Memory scalar.Quantity `json:"memory,omitzero" protobuf:"bytes,2,opt,name=memory"`
	// storage is the size of the disk in bytes, such as 64Gi. A smaller image disk is grown to this
	// size.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,3,opt,name=storage"`
}

// Display is the display of a virtual machine.
type Display struct {
	// width is the width in pixels.
	Width int32 `json:"width" protobuf:"varint,1,opt,name=width"`
	// height is the height in pixels.
	Height int32 `json:"height" protobuf:"varint,2,opt,name=height"`
	// pixelsPerInch is the pixel density.
	// +optional
	PixelsPerInch int32 `json:"pixelsPerInch,omitempty" protobuf:"varint,3,opt,name=pixelsPerInch"`
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
	// mode is the kind of network: Isolated or NAT. NAT is faster, but separates the virtual
	// machine neither from its Mac nor from the Mac's networks. Defaults to Isolated.
	// +optional
	Mode NetworkMode `json:"mode,omitempty" protobuf:"bytes,1,opt,name=mode,casttype=NetworkMode"`
	// limits narrow the private destinations that spec.guestNetwork of the RackConfig allows. The
	// virtual machine reaches those that both allow. If absent, it reaches all that the RackConfig
	// allows. Only for the mode Isolated.
	// +optional
	Limits *NetworkLimits `json:"limits,omitempty" protobuf:"bytes,2,opt,name=limits"`
}

// NetworkLimits are the private destinations of isolated virtual machines.
type NetworkLimits struct {
	// allowedCIDRs are private IPv4 networks, such as 10.20.0.0/16. At most 64.
	// +optional
	// +listType=atomic
	AllowedCIDRs []string `json:"allowedCIDRs,omitempty" protobuf:"bytes,1,rep,name=allowedCIDRs"`
	// allowedNames are DNS names, such as git.example.com, or *.example.com for all names below it.
	// At most 64.
	// +optional
	// +listType=atomic
	AllowedNames []string `json:"allowedNames,omitempty" protobuf:"bytes,2,rep,name=allowedNames"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClassList is a list of InstanceClasses.
type InstanceClassList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []InstanceClass `json:"items" protobuf:"bytes,2,rep,name=items"`
}
