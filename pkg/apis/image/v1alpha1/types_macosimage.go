package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSImage is one version of macOS, the Xcode that belongs on it, and the guest agent. It becomes Ready when its
// manifest was verified in the registry. Then it cannot be changed: a new macOS or Xcode is a new MacOSImage.
type MacOSImage struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec says what is in the image and where it comes from.
	Spec MacOSImageSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status says whether the image can be used, and which Macs hold it.
	// +optional
	Status MacOSImageStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacOSImageSpec says what is in an image and where it comes from.
type MacOSImageSpec struct {
	// contents are macOS and guest-agent, each exactly once, and Xcode at most once.
	// +listType=map
	// +listMapKey=name
	Contents []ImageContent `json:"contents" protobuf:"bytes,1,rep,name=contents"`
	// source is where the image comes from.
	Source ImageSource `json:"source" protobuf:"bytes,2,opt,name=source"`
	// diskSize is the size of the image's disk in bytes, such as 60Gi.
	DiskSize scalar.Quantity `json:"diskSize,omitzero" protobuf:"bytes,3,opt,name=diskSize"`
	// hardwareModel is the hardware model that Virtualization.framework is to emulate, in base64.
	// +optional
	HardwareModel string `json:"hardwareModel,omitempty" protobuf:"bytes,4,opt,name=hardwareModel"`
	// pullSecretRef names the Secret, of type kubernetes.io/dockerconfigjson, with the credentials for the source.
	// +optional
	PullSecretRef *SecretReference `json:"pullSecretRef,omitempty" protobuf:"bytes,5,opt,name=pullSecretRef"`
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
	// name is macOS, Xcode or guest-agent.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// version is the version, such as "26.1".
	Version string `json:"version" protobuf:"bytes,2,opt,name=version"`
	// build is the build, such as "25B78".
	// +optional
	Build string `json:"build,omitempty" protobuf:"bytes,3,opt,name=build"`
}

// ImageSource is where an image comes from.
type ImageSource struct {
	// reference is an OCI reference, such as "registry.example.com/macos/26:xcode-26".
	Reference string `json:"reference" protobuf:"bytes,1,opt,name=reference"`
	// digest pins the content: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest" protobuf:"bytes,2,opt,name=digest"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// namespace is the namespace of the Secret.
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`
	// name is the name of the Secret.
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`
}

// MacOSImagePhase says whether an image can be used.
type MacOSImagePhase string

const (
	// MacOSImagePending means that the image could not be verified yet; it is tried again.
	MacOSImagePending MacOSImagePhase = "Pending"
	// MacOSImageReady means that the manifest was verified in its registry, and that instances can start from the image.
	MacOSImageReady MacOSImagePhase = "Ready"
	// MacOSImageFailed means that the image cannot be used as the spec is; message says why. A new spec is verified again.
	MacOSImageFailed MacOSImagePhase = "Failed"
)

// MacOSImageReadyCondition is True when the manifest was verified in its registry, and Unknown before the first attempt. The
// controllers write it.
const MacOSImageReadyCondition = "Ready"

// Reasons of the condition Ready of a MacOSImage. The phase is Failed with those that only a change of the spec or of
// the registry can end, Pending with those that are tried again.
const (
	// ReasonVerified: the manifest is in the registry and describes an image that can be used.
	ReasonVerified = "Verified"
	// ReasonAsserted: another client than the controllers set the phase to Ready.
	ReasonAsserted = "Asserted"
	// ReasonVerifying: the image is being verified. Pending.
	ReasonVerifying = "Verifying"
	// ReasonUnreachable: the registry does not answer, or with errors of its own. Pending.
	ReasonUnreachable = "Unreachable"
	// ReasonUnauthorized: the registry refuses the credentials, or wants some. Pending.
	ReasonUnauthorized = "Unauthorized"
	// ReasonPullSecretUnreadable: the Secret is missing, is no kubernetes.io/dockerconfigjson, or may not be read. Pending.
	ReasonPullSecretUnreadable = "PullSecretUnreadable"
	// ReasonManifestUnknown: the repository has no manifest of this digest. Failed.
	ReasonManifestUnknown = "ManifestUnknown"
	// ReasonMalformed: the content of this digest is not an image of macOS, or the reference is invalid. Failed.
	ReasonMalformed = "Malformed"
	// ReasonIncomplete: the image lacks its auxiliary storage or its hardware model. Failed.
	ReasonIncomplete = "Incomplete"
	// ReasonDiskTooLarge: the disk is larger than spec.diskSize. Failed.
	ReasonDiskTooLarge = "DiskTooLarge"
)

// MacOSImageStatus says whether an image can be used, and which Macs hold it.
type MacOSImageStatus struct {
	// phase is Pending, Ready or Failed.
	// +optional
	Phase MacOSImagePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacOSImagePhase"`
	// message says why the image is not Ready.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// digest is the digest that was verified.
	// +optional
	Digest string `json:"digest,omitempty" protobuf:"bytes,3,opt,name=digest"`
	// sizeBytes is what the image takes on a Mac's disk, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty" protobuf:"varint,4,opt,name=sizeBytes"`
	// replicatedOn lists the serial numbers of the Macs that hold the image.
	// +listType=set
	// +optional
	ReplicatedOn []string `json:"replicatedOn,omitempty" protobuf:"bytes,5,rep,name=replicatedOn"`
	// conditions are Ready, and Reconciling or Stalled while the image is not Ready.
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
