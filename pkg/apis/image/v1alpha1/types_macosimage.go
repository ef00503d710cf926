package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImage is a disk image with one version of macOS, the guest agent and optionally Xcode. It
// becomes Ready after its manifest has been verified in the registry. The spec of a Ready image is
// immutable: a new version of macOS or Xcode needs a new MacOSImage.
type MacOSImage struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec describes the contents and the source of the image.
	Spec MacOSImageSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is the most recently observed status of the image. Populated by the system. Read-only.
	// +optional
	Status MacOSImageStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacOSImageSpec describes the contents and the source of an image.
type MacOSImageSpec struct {
	// contents lists the software in the image: macOS and guest-agent exactly once each, and Xcode
	// at most once.
	// +listType=map
	// +listMapKey=name
	Contents []ImageContent `json:"contents" protobuf:"bytes,1,rep,name=contents"`
	// source is the location of the image in an OCI registry.
	Source ImageSource `json:"source" protobuf:"bytes,2,opt,name=source"`
	// diskSize is the size of the image's disk in bytes, such as 60Gi.
	DiskSize scalar.Quantity `json:"diskSize,omitzero" protobuf:"bytes,3,opt,name=diskSize"`
	// hardwareModel is the base64-encoded hardware model that Virtualization.framework emulates. If
	// not specified, the hardware model in the image's manifest is used.
	// +optional
	HardwareModel string `json:"hardwareModel,omitempty" protobuf:"bytes,4,opt,name=hardwareModel"`
	// pullSecretRef is a reference to the Secret with the credentials for the registry. The Secret
	// must have the type kubernetes.io/dockerconfigjson.
	// +optional
	PullSecretRef *SecretReference `json:"pullSecretRef,omitempty" protobuf:"bytes,5,opt,name=pullSecretRef"`
	// identity is the source of the machine identifiers of virtual machines. Generated, the
	// default, gives each virtual machine an identifier of its own. FromImage is for an image that
	// boots only with the identifier it was made with: only one instance of the image can exist in
	// the fleet at a time.
	// +optional
	Identity ImageIdentity `json:"identity,omitempty" protobuf:"bytes,6,opt,name=identity,casttype=ImageIdentity"`
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
	// name is the name of the software: macOS, Xcode or guest-agent.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// version is the version of the software, such as "26.1".
	Version string `json:"version" protobuf:"bytes,2,opt,name=version"`
	// build is the build number of the software, such as "25B78".
	// +optional
	Build string `json:"build,omitempty" protobuf:"bytes,3,opt,name=build"`
}

// ImageSource is the location of an image in an OCI registry.
type ImageSource struct {
	// reference is an OCI reference, such as "registry.example.com/macos/26:xcode-26".
	Reference string `json:"reference" protobuf:"bytes,1,opt,name=reference"`
	// digest is the digest of the manifest: "sha256:" and 64 hexadecimal digits. The agent pulls
	// the image by its digest.
	Digest string `json:"digest" protobuf:"bytes,2,opt,name=digest"`
}

// SecretReference is a reference to a Secret.
type SecretReference struct {
	// namespace is the namespace of the Secret.
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`
	// name is the name of the Secret.
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`
}

// MacOSImagePhase is the phase of an image.
type MacOSImagePhase string

const (
	// MacOSImagePending means that the image has not been verified yet; verification is retried.
	MacOSImagePending MacOSImagePhase = "Pending"
	// MacOSImageReady means that the manifest was verified in its registry and that instances can
	// start from the image.
	MacOSImageReady MacOSImagePhase = "Ready"
	// MacOSImageFailed means that verification failed; message has the cause. A change of the spec
	// starts a new verification.
	MacOSImageFailed MacOSImagePhase = "Failed"
)

// MacOSImageReadyCondition is True when the manifest was verified in its registry, and Unknown
// before the first attempt. The controllers write it.
const MacOSImageReadyCondition = "Ready"

// Reasons of the condition Ready of a MacOSImage. The phase is Failed if only a change of the spec
// or of the registry can help, and Pending if verification is retried.
const (
	// ReasonVerified: the manifest is in the registry and describes a usable image.
	ReasonVerified = "Verified"
	// ReasonAsserted: a client other than the controllers set the phase to Ready.
	ReasonAsserted = "Asserted"
	// ReasonVerifying: the image is being verified. Pending.
	ReasonVerifying = "Verifying"
	// ReasonUnreachable: the registry does not answer or has an internal error. Pending.
	ReasonUnreachable = "Unreachable"
	// ReasonUnauthorized: the registry refuses the credentials or requires some. Pending.
	ReasonUnauthorized = "Unauthorized"
	// ReasonPullSecretUnreadable: the Secret is missing, has another type than
	// kubernetes.io/dockerconfigjson, or is not readable for the controllers. Pending.
	ReasonPullSecretUnreadable = "PullSecretUnreadable"
	// ReasonManifestUnknown: the repository has no manifest with this digest. Failed.
	ReasonManifestUnknown = "ManifestUnknown"
	// ReasonMalformed: the content with this digest is not a macOS image, or the reference is
	// invalid. Failed.
	ReasonMalformed = "Malformed"
	// ReasonIncomplete: the auxiliary storage, hardware model or config is missing. Failed.
	ReasonIncomplete = "Incomplete"
	// ReasonDiskTooLarge: the disk is larger than spec.diskSize. Failed.
	ReasonDiskTooLarge = "DiskTooLarge"
)

// MacOSImageStatus is the most recently observed status of an image.
type MacOSImageStatus struct {
	// phase is a summary of the status: Pending, Ready or Failed.
	// +optional
	Phase MacOSImagePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacOSImagePhase"`
	// message is a human-readable explanation of why the image is not Ready.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// digest is the verified digest of the manifest.
	// +optional
	Digest string `json:"digest,omitempty" protobuf:"bytes,3,opt,name=digest"`
	// sizeBytes is the disk space that the image takes on a Mac, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty" protobuf:"varint,4,opt,name=sizeBytes"`
	// replicatedOn lists the serial numbers of the Macs that have the image on disk.
	// +listType=set
	// +optional
	ReplicatedOn []string `json:"replicatedOn,omitempty" protobuf:"bytes,5,rep,name=replicatedOn"`
	// conditions are the latest observations of the image: Ready, and Reconciling or Stalled while
	// the image is not Ready.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,6,rep,name=conditions"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImageList is a list of MacOSImages.
type MacOSImageList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []MacOSImage `json:"items" protobuf:"bytes,2,rep,name=items"`
}
