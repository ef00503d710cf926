package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNode is one physical Mac. Its name is the name of the Kubernetes Node that the Mac's agent registers.
type MacNode struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec says which Mac this is and where it stands.
	Spec MacNodeSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is what the agent and the registry know of the Mac.
	// +optional
	Status MacNodeStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeSpec says which Mac this is and where it stands.
type MacNodeSpec struct {
	// serialNumber is the serial number on the chassis. It is unique in the fleet and cannot be changed.
	SerialNumber string `json:"serialNumber" protobuf:"bytes,1,opt,name=serialNumber"`
	// className names the MacNodeClass of the Mac. It cannot be changed while the Mac is leased.
	ClassName string `json:"className" protobuf:"bytes,2,opt,name=className"`
	// location says where the Mac stands.
	// +optional
	Location MacNodeLocation `json:"location,omitempty,omitzero" protobuf:"bytes,3,opt,name=location"`
	// maintenance takes the Mac out of the pool as soon as it is free. It does not end a lease.
	// +optional
	Maintenance bool `json:"maintenance,omitempty" protobuf:"varint,4,opt,name=maintenance"`
}

// MacNodeLocation says where a Mac stands.
type MacNodeLocation struct {
	// site is the data centre.
	// +optional
	Site string `json:"site,omitempty" protobuf:"bytes,1,opt,name=site"`
	// rack is the rack in the site.
	// +optional
	Rack string `json:"rack,omitempty" protobuf:"bytes,2,opt,name=rack"`
	// shelf is the shelf in the rack.
	// +optional
	Shelf string `json:"shelf,omitempty" protobuf:"bytes,3,opt,name=shelf"`
}

// MacNodePhase is where a Mac is in its life. The registry derives it from the rest of the status.
type MacNodePhase string

const (
	// MacNodePending means that no agent has reported for the Mac yet.
	MacNodePending MacNodePhase = "Pending"
	// MacNodeAvailable means that a lease can be bound to the Mac.
	MacNodeAvailable MacNodePhase = "Available"
	// MacNodeLeased means that the Mac belongs to a lease.
	MacNodeLeased MacNodePhase = "Leased"
	// MacNodeReleasing means that the lease has ended and the Mac is being emptied and scrubbed.
	MacNodeReleasing MacNodePhase = "Releasing"
	// MacNodeOffline means that the Mac's agent has not been heard of for too long.
	MacNodeOffline MacNodePhase = "Offline"
	// MacNodeMaintenance means that an administrator keeps the Mac out of the pool.
	MacNodeMaintenance MacNodePhase = "Maintenance"
	// MacNodeQuarantined means that the Mac cannot be trusted to run two virtual machines.
	MacNodeQuarantined MacNodePhase = "Quarantined"
)

// Types of conditions of a MacNode.
const (
	// MacNodeReady is True while the Mac's agent sends heartbeats, and Unknown until the first one. The controllers write it.
	MacNodeReady = "Ready"
	// MacNodeStalled is True while the Mac is in quarantine; absent otherwise.
	MacNodeStalled = "Stalled"
	// MacNodeSlotsHealthy is True when the kernel gives the Mac as many virtual machines as it should. The agent writes it.
	MacNodeSlotsHealthy = "SlotsHealthy"
	// MacNodeStorageHealthy is True when the Mac's disk has room and answers. The agent writes it.
	MacNodeStorageHealthy = "StorageHealthy"
	// MacNodeScrubbed is True when nothing of the last tenant is left on the Mac. The agent writes it.
	MacNodeScrubbed = "Scrubbed"
)

// Reasons of the conditions SlotsHealthy=False, and so of a quarantine.
const (
	// ReasonKernelQuotaStuck means that the kernel refuses virtual machines although fewer than two run.
	ReasonKernelQuotaStuck = "KernelQuotaStuck"
	// ReasonCannotReattach means that a virtual machine runs that the agent cannot talk to.
	ReasonCannotReattach = "CannotReattach"
	// ReasonSerialMismatch means that the Mac reports another serial number than the MacNode has.
	ReasonSerialMismatch = "SerialMismatch"
	// ReasonScrubFailed means that something of a tenant could not be removed.
	ReasonScrubFailed = "ScrubFailed"
	// ReasonScrubAsserted means that it was not the agent who said that the Mac is scrubbed.
	ReasonScrubAsserted = "ScrubAsserted"
	// ReasonUnknownInstance means that a virtual machine runs that has no MacOSInstance: the API has lost state.
	ReasonUnknownInstance = "UnknownInstance"
)

// MacNodeStatus is what the agent and the registry know of a Mac.
type MacNodeStatus struct {
	// phase sums up the status: Pending, Available, Leased, Releasing, Offline, Maintenance or Quarantined. It is derived by the server.
	// +optional
	Phase MacNodePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacNodePhase"`
	// leaseRef is the one lease that the Mac belongs to. Only the lease's binding and release subresources change it.
	// +optional
	LeaseRef *LeaseReference `json:"leaseRef,omitempty" protobuf:"bytes,2,opt,name=leaseRef"`
	// earliestReleaseAt is when the floor of the Mac's lease elapses.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,3,opt,name=earliestReleaseAt"`
	// prefetchImages are the MacOSImages that the Mac's lease asks for beforehand. The agent fetches them.
	// +listType=set
	// +optional
	PrefetchImages []string `json:"prefetchImages,omitempty" protobuf:"bytes,12,rep,name=prefetchImages"`
	// releasingSince is when the Mac's lease ended and the Mac began to be emptied.
	// +optional
	ReleasingSince *metav1.Time `json:"releasingSince,omitempty" protobuf:"bytes,4,opt,name=releasingSince"`
	// runningVMs is the number of virtual machines that run on the Mac, 0 to 2. The registry counts them.
	// +optional
	RunningVMs int32 `json:"runningVMs" protobuf:"varint,5,opt,name=runningVMs"`
	// bootID identifies the running boot of the host; it changes with each reboot.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,6,opt,name=bootID"`
	// quarantine says why nothing is placed on the Mac. It ends with a reboot, which a new bootID proves, or when an administrator clears it.
	// +optional
	Quarantine *Quarantine `json:"quarantine,omitempty" protobuf:"bytes,7,opt,name=quarantine"`
	// scrub is the agent's report of the last scrub.
	// +optional
	Scrub *ScrubReport `json:"scrub,omitempty" protobuf:"bytes,8,opt,name=scrub"`
	// hardware is what the agent found.
	// +optional
	Hardware *MacNodeHardware `json:"hardware,omitempty" protobuf:"bytes,9,opt,name=hardware"`
	// images are the images on the Mac's disk.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Images []CachedImage `json:"images,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,10,rep,name=images"`
	// conditions are Ready, SlotsHealthy, StorageHealthy and Scrubbed, and Stalled while the Mac is in quarantine.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,11,rep,name=conditions"`
	// imageChecks are what the agent found in the registries of images that the controllers cannot verify themselves.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	ImageChecks []ImageCheck `json:"imageChecks,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,14,rep,name=imageChecks"`
}

// LeaseReference names a MacNodeLease.
type LeaseReference struct {
	// namespace is the namespace of the lease, which is the tenant.
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`
	// name is the name of the lease.
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`
	// uid is the UID of the lease.
	UID types.UID `json:"uid" protobuf:"bytes,3,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// Quarantine says why nothing is placed on a Mac.
type Quarantine struct {
	// reason is a word for the cause, such as KernelQuotaStuck.
	Reason string `json:"reason" protobuf:"bytes,1,opt,name=reason"`
	// message says more about the cause.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// since is when the quarantine began.
	Since metav1.Time `json:"since" protobuf:"bytes,3,opt,name=since"`
	// bootID is the boot during which the quarantine began.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,4,opt,name=bootID"`
	// endInstances are the UIDs of virtual machines without a MacOSInstance that the agent is to stop and erase, at most 8. An
	// administrator writes them; until then such a virtual machine continues to run.
	// +listType=set
	// +optional
	EndInstances []string `json:"endInstances,omitempty" protobuf:"bytes,5,rep,name=endInstances"`
}

// ScrubReport is an agent's proof that nothing of a tenant is left.
type ScrubReport struct {
	// leaseUID is the UID of the lease whose remains were removed.
	LeaseUID types.UID `json:"leaseUID" protobuf:"bytes,1,opt,name=leaseUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// finishedAt is when the scrub was done.
	FinishedAt metav1.Time `json:"finishedAt" protobuf:"bytes,2,opt,name=finishedAt"`
	// removed lists what was removed, at most 64 entries.
	// +listType=atomic
	// +optional
	Removed []string `json:"removed,omitempty" protobuf:"bytes,3,rep,name=removed"`
	// remaining lists what is left of the tenant: nothing, or the scrub has failed.
	// +listType=atomic
	// +optional
	Remaining []string `json:"remaining,omitempty" protobuf:"bytes,4,rep,name=remaining"`
}

// MacNodeHardware is what the agent found on the Mac.
type MacNodeHardware struct {
	// modelIdentifier is what macOS reports, such as "Mac16,10".
	// +optional
	ModelIdentifier string `json:"modelIdentifier,omitempty" protobuf:"bytes,1,opt,name=modelIdentifier"`
	// serialNumber is the serial number that the host reports.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
	// cpu is the number of processor cores.
	// +optional
	CPU scalar.Quantity `json:"cpu,omitempty,omitzero" protobuf:"bytes,3,opt,name=cpu"`
	// memory is the main memory, in bytes.
	// +optional
	Memory scalar.Quantity `json:"memory,omitempty,omitzero" protobuf:"bytes,4,opt,name=memory"`
	// storage is the size of the disk, in bytes.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,5,opt,name=storage"`
	// freeStorage is what is free on the disk, in bytes, rounded down to GiB.
	// +optional
	FreeStorage scalar.Quantity `json:"freeStorage,omitempty,omitzero" protobuf:"bytes,6,opt,name=freeStorage"`
	// macOSVersion is the version of macOS on the host, such as "26.1".
	// +optional
	MacOSVersion string `json:"macOSVersion,omitempty" protobuf:"bytes,7,opt,name=macOSVersion"`
	// agentVersion is the version of the agent.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty" protobuf:"bytes,8,opt,name=agentVersion"`
}

// CachedImage is an image on a Mac's disk.
type CachedImage struct {
	// name is the name of the MacOSImage.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// digest is the digest of the image's manifest, such as "sha256:...".
	// +optional
	Digest string `json:"digest,omitempty" protobuf:"bytes,2,opt,name=digest"`
	// sizeBytes is the space that the image takes, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty" protobuf:"varint,3,opt,name=sizeBytes"`
	// lastUsedAt is when an instance last started from the image.
	// +optional
	LastUsedAt *metav1.Time `json:"lastUsedAt,omitempty" protobuf:"bytes,4,opt,name=lastUsedAt"`
}

// ImageCheck is what an agent found when it verified the manifest of an image in its registry.
type ImageCheck struct {
	// name is the name of the MacOSImage.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// observedGeneration is the generation of the MacOSImage that was verified.
	ObservedGeneration int64 `json:"observedGeneration" protobuf:"varint,2,opt,name=observedGeneration"`
	// reason is Verified, or why the image is not, as in the condition Ready of the MacOSImage.
	Reason string `json:"reason" protobuf:"bytes,3,opt,name=reason"`
	// message says more about the reason.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,4,opt,name=message"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeList is a list of MacNodes.
type MacNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []MacNode `json:"items" protobuf:"bytes,2,rep,name=items"`
}
