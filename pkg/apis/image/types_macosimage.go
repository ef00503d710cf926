package image

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImage is one version of macOS, the Xcode that belongs on it, and the guest agent. Once Ready it
// cannot be changed: a new macOS or Xcode is a new MacOSImage.
type MacOSImage struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacOSImageSpec
	Status MacOSImageStatus
}

// MacOSImageSpec says what is in an image and where it comes from.
type MacOSImageSpec struct {
	Contents      []ImageContent
	Source        ImageSource
	DiskSize      scalar.Quantity
	HardwareModel string
	PullSecretRef *SecretReference
}

// Names that an image's contents can have.
const (
	// ContentMacOS is the operating system.
	ContentMacOS = "macOS"
	// ContentXcode is Apple's development environment.
	ContentXcode = "Xcode"
	// ContentGuestAgent is MacRack's agent in the virtual machine.
	ContentGuestAgent = "guest-agent"
)

// ImageContent is one thing in an image.
type ImageContent struct {
	Name    string
	Version string
	Build   string
}

// ImageSource is where an image comes from.
type ImageSource struct {
	Reference string
	Digest    string
}

// SecretReference names a Secret.
type SecretReference struct {
	Namespace string
	Name      string
}

// MacOSImagePhase says whether an image can be used.
type MacOSImagePhase string

const (
	// MacOSImagePending means that the image has not been checked yet.
	MacOSImagePending MacOSImagePhase = "Pending"
	// MacOSImageReady means that instances can start from the image.
	MacOSImageReady MacOSImagePhase = "Ready"
	// MacOSImageFailed means that the image cannot be used; message says why.
	MacOSImageFailed MacOSImagePhase = "Failed"
)

// MacOSImageReadyCondition is True when the manifest was verified in its registry.
const MacOSImageReadyCondition = "Ready"

// ReasonVerifying is the reason of the condition Ready of an image that has not been verified yet.
const ReasonVerifying = "Verifying"

// ReasonPullSecretUnreadable is the reason of the condition Ready of an image that the controllers cannot verify, as they may
// not read its Secret.
const ReasonPullSecretUnreadable = "PullSecretUnreadable"

// MacOSImageStatus says whether an image can be used, and which Macs hold it.
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
