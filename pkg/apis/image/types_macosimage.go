package image

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImage is a disk image with one version of macOS, the guest agent and optionally Xcode. The
// spec of a Ready image is immutable: a new version of macOS or Xcode needs a new MacOSImage.
type MacOSImage struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacOSImageSpec
	Status MacOSImageStatus
}

// MacOSImageSpec describes the contents and the source of an image.
type MacOSImageSpec struct {
	Contents      []ImageContent
	Source        ImageSource
	DiskSize      scalar.Quantity
	HardwareModel string
	PullSecretRef *SecretReference
	Identity      ImageIdentity
}

// ImageIdentity is the source of the machine identifiers of virtual machines.
type ImageIdentity string

const (
	// ImageIdentityGenerated gives each virtual machine a machine identifier of its own.
	ImageIdentityGenerated ImageIdentity = "Generated"
	// ImageIdentityFromImage gives the virtual machine the machine identifier in the image.
	ImageIdentityFromImage ImageIdentity = "FromImage"
)

// Names of the contents of an image.
const (
	// ContentMacOS is the operating system.
	ContentMacOS = "macOS"
	// ContentXcode is Xcode.
	ContentXcode = "Xcode"
	// ContentGuestAgent is the MacRack agent inside the virtual machine.
	ContentGuestAgent = "guest-agent"
)

// ImageContent is a piece of software in an image.
type ImageContent struct {
	Name    string
	Version string
	Build   string
}

// ImageSource is the location of an image in an OCI registry.
type ImageSource struct {
	Reference string
	Digest    string
}

// SecretReference is a reference to a Secret.
type SecretReference struct {
	Namespace string
	Name      string
}

// MacOSImagePhase is the phase of an image.
type MacOSImagePhase string

const (
	// MacOSImagePending means that the image has not been verified yet.
	MacOSImagePending MacOSImagePhase = "Pending"
	// MacOSImageReady means that instances can start from the image.
	MacOSImageReady MacOSImagePhase = "Ready"
	// MacOSImageFailed means that verification failed; message has the cause.
	MacOSImageFailed MacOSImagePhase = "Failed"
)

// MacOSImageReadyCondition is True when the manifest was verified in its registry.
const MacOSImageReadyCondition = "Ready"

// ReasonVerifying is the reason of the condition Ready of an image that has not been verified yet.
const ReasonVerifying = "Verifying"

// ReasonPullSecretUnreadable is the reason of the condition Ready of an image that the controllers
// cannot verify because they cannot read its Secret.
const ReasonPullSecretUnreadable = "PullSecretUnreadable"

// MacOSImageStatus is the most recently observed status of an image.
type MacOSImageStatus struct {
	Phase        MacOSImagePhase
	Message      string
	Digest       string
	SizeBytes    int64
	ReplicatedOn []string
	Conditions   []metav1.Condition
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImageList is a list of MacOSImages.
type MacOSImageList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []MacOSImage
}
