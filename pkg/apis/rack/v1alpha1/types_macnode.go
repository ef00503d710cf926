package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:method=Restore,verb=create,subresource=restore,input=MacNodeRestore,result=MacNodeRestore
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNode is one physical Mac. Its name is the name of the Kubernetes Node that the Mac's agent
// registers.
type MacNode struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec describes the Mac and its location.
	Spec MacNodeSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is the most recently observed status of the Mac. Populated by the system. Read-only.
	// +optional
	Status MacNodeStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeSpec describes a Mac and its location.
type MacNodeSpec struct {
	// serialNumber is the serial number on the chassis. It is unique in the fleet and immutable.
	SerialNumber string `json:"serialNumber" protobuf:"bytes,1,opt,name=serialNumber"`
	// className is the name of the MacNodeClass of the Mac. It is immutable while the Mac is
	// leased.
	ClassName string `json:"className" protobuf:"bytes,2,opt,name=className"`
	// location is the location of the Mac in the data centre.
	// +optional
	Location MacNodeLocation `json:"location,omitempty,omitzero" protobuf:"bytes,3,opt,name=location"`
	// maintenance takes the Mac out of the pool as soon as it is free. It does not end the current
	// lease.
	// +optional
	Maintenance bool `json:"maintenance,omitempty" protobuf:"varint,4,opt,name=maintenance"`
}

// MacNodeLocation is the location of a Mac.
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

// MacNodePhase is the phase in the lifecycle of a Mac. The API server derives it from the rest of
// the status.
type MacNodePhase string

const (
	// MacNodePending means that the agent of the Mac has not reported yet.
	MacNodePending MacNodePhase = "Pending"
	// MacNodeAvailable means that a lease can be bound to the Mac.
	MacNodeAvailable MacNodePhase = "Available"
	// MacNodeLeased means that the Mac belongs to a lease.
	MacNodeLeased MacNodePhase = "Leased"
	// MacNodeReleasing means that the lease has ended and the Mac is being emptied and scrubbed.
	MacNodeReleasing MacNodePhase = "Releasing"
	// MacNodeOffline means that the agent of the Mac has stopped sending heartbeats.
	MacNodeOffline MacNodePhase = "Offline"
	// MacNodeMaintenance means that an administrator keeps the Mac out of the pool.
	MacNodeMaintenance MacNodePhase = "Maintenance"
	// MacNodeQuarantined means that the Mac cannot be trusted to run two virtual machines.
	MacNodeQuarantined MacNodePhase = "Quarantined"
)

// Types of conditions of a MacNode.
const (
	// MacNodeReady is True while the agent of the Mac sends heartbeats, and Unknown until the first
	// one. The controllers write it.
	MacNodeReady = "Ready"
	// MacNodeStalled is True while the Mac is in quarantine; absent otherwise.
	MacNodeStalled = "Stalled"
	// MacNodeSlotsHealthy is True when the kernel allows the expected number of virtual machines.
	// The agent writes it.
	MacNodeSlotsHealthy = "SlotsHealthy"
	// MacNodeStorageHealthy is True when the disk of the Mac responds and has enough free space.
	// The agent writes it.
	MacNodeStorageHealthy = "StorageHealthy"
	// MacNodeScrubbed is True when no data of the last tenant is left on the Mac. The agent writes
	// it.
	MacNodeScrubbed = "Scrubbed"
)

// Reasons of the condition SlotsHealthy=False and of the quarantine that follows from it.
const (
	// ReasonKernelQuotaStuck means that the kernel refuses virtual machines although fewer than two
	// are running.
	ReasonKernelQuotaStuck = "KernelQuotaStuck"
	// ReasonCannotReattach means that the agent cannot connect to a running virtual machine.
	ReasonCannotReattach = "CannotReattach"
	// ReasonSerialMismatch means that the Mac reports a serial number that differs from the one in
	// the MacNode.
	ReasonSerialMismatch = "SerialMismatch"
	// ReasonScrubFailed means that data of a tenant could not be removed.
	ReasonScrubFailed = "ScrubFailed"
	// ReasonScrubAsserted means that a client other than the agent reported the Mac as scrubbed.
	ReasonScrubAsserted = "ScrubAsserted"
	// ReasonUnknownInstance means that a running virtual machine has no MacOSInstance: the API has
	// lost state.
	ReasonUnknownInstance = "UnknownInstance"
	// ReasonKeychainLocked means that the login keychain of the agent's user is locked, without
	// which macOS starts no virtual machine.
	ReasonKeychainLocked = "KeychainLocked"
	// ReasonNoLoginSession means that the agent's user is not logged in at the screen. Virtual
	// machines run only in a login session.
	ReasonNoLoginSession = "NoLoginSession"
)

// Reasons of the quarantine of a Mac that has seen records that the server does not have: the
// server's etcd has lost history. They do not depend on a condition.
const (
	// ReasonLedgerBehind means that the chain of the Mac ends before a record that the Mac has
	// seen.
	ReasonLedgerBehind = "LedgerBehind"
	// ReasonLedgerForked means that the chain of the Mac has another record in the place of one
	// that the Mac has seen.
	ReasonLedgerForked = "LedgerForked"
)

// MacNodeStatus is the most recently observed status of a Mac.
type MacNodeStatus struct {
	// phase is a summary of the status: Pending, Available, Leased, Releasing, Offline, Maintenance
	// or Quarantined. The server derives it.
	// +optional
	Phase MacNodePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacNodePhase"`
	// leaseRef is a reference to the lease that has the Mac. Only the binding and release
	// subresources of the lease change it.
	// +optional
	LeaseRef *LeaseReference `json:"leaseRef,omitempty" protobuf:"bytes,2,opt,name=leaseRef"`
	// earliestReleaseAt is the floor of the lease: the earliest time at which the Mac can be
	// released.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,3,opt,name=earliestReleaseAt"`
	// prefetchImages lists the MacOSImages that the agent pulls before an instance needs them. It
	// is copied from the lease.
	// +listType=set
	// +optional
	PrefetchImages []string `json:"prefetchImages,omitempty" protobuf:"bytes,12,rep,name=prefetchImages"`
	// releasingSince is the time at which the release of the Mac began.
	// +optional
	ReleasingSince *metav1.Time `json:"releasingSince,omitempty" protobuf:"bytes,4,opt,name=releasingSince"`
	// runningVMs is the number of virtual machines that count as running on the Mac, from 0 to 2.
	// The server counts them.
	// +optional
	RunningVMs int32 `json:"runningVMs" protobuf:"varint,5,opt,name=runningVMs"`
	// bootID is the ID of the current boot of the host. It changes with each reboot.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,6,opt,name=bootID"`
	// quarantine is set while no instance can start on the Mac. It ends with a reboot, which a new
	// bootID proves, or when an administrator clears it.
	// +optional
	Quarantine *Quarantine `json:"quarantine,omitempty" protobuf:"bytes,7,opt,name=quarantine"`
	// scrub is the report of the last scrub by the agent.
	// +optional
	Scrub *ScrubReport `json:"scrub,omitempty" protobuf:"bytes,8,opt,name=scrub"`
	// hardware is the hardware that the agent found.
	// +optional
	Hardware *MacNodeHardware `json:"hardware,omitempty" protobuf:"bytes,9,opt,name=hardware"`
	// images lists the images on the disk of the Mac.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Images []CachedImage `json:"images,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,10,rep,name=images"`
	// conditions are the latest observations of the Mac: Ready, SlotsHealthy, StorageHealthy and
	// Scrubbed, and Stalled while the Mac is in quarantine.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,11,rep,name=conditions"`
	// imageChecks are the agent's verifications of images that the controllers cannot verify.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	ImageChecks []ImageCheck `json:"imageChecks,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,14,rep,name=imageChecks"`
	// caches lists the caches of the lease. It is copied from the lease.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Caches []LeaseCache `json:"caches,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,15,rep,name=caches"`
	// ledger is the state of the chain of AuditRecords of the Mac. The server sets it in the
	// transaction of each record.
	// +optional
	Ledger *MacNodeLedger `json:"ledger,omitempty" protobuf:"bytes,16,opt,name=ledger"`
	// witness is what the Mac has seen of its chain, and what it serves. Its agent keeps it on the
	// disk of the Mac, which a loss of the server's etcd does not affect.
	// +optional
	Witness *MacNodeWitness `json:"witness,omitempty" protobuf:"bytes,17,opt,name=witness"`
}

// LeaseReference is a reference to a MacNodeLease.
type LeaseReference struct {
	// namespace is the namespace of the lease, which identifies the tenant.
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`
	// name is the name of the lease.
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`
	// uid is the UID of the lease.
	UID types.UID `json:"uid" protobuf:"bytes,3,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// boundAt is the time at which the lease was bound to the Mac.
	// +optional
	BoundAt *metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,4,opt,name=boundAt"`
	// heldAt is the time at which the lease was deleted before its floor.
	// +optional
	HeldAt *metav1.Time `json:"heldAt,omitempty" protobuf:"bytes,5,opt,name=heldAt"`
	// namespaceUID is the UID of the namespace that the lease was created in.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty" protobuf:"bytes,6,opt,name=namespaceUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// Quarantine is the state of a Mac on which no instance can start.
type Quarantine struct {
	// reason is the cause as a single CamelCase word, such as KernelQuotaStuck.
	Reason string `json:"reason" protobuf:"bytes,1,opt,name=reason"`
	// message is a human-readable description of the cause.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// since is the time at which the quarantine began.
	Since metav1.Time `json:"since" protobuf:"bytes,3,opt,name=since"`
	// bootID is the ID of the boot during which the quarantine began.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,4,opt,name=bootID"`
	// endInstances lists the UIDs of virtual machines without a MacOSInstance that the agent stops
	// and erases. An administrator sets it; until then these virtual machines continue to run.
	// Maximum: 8 entries.
	// +listType=set
	// +optional
	EndInstances []string `json:"endInstances,omitempty" protobuf:"bytes,5,rep,name=endInstances"`
}

// ScrubReport is an agent's report of the removal of a tenant's data.
type ScrubReport struct {
	// leaseUID is the UID of the lease whose data was removed.
	LeaseUID types.UID `json:"leaseUID" protobuf:"bytes,1,opt,name=leaseUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// finishedAt is the time at which the scrub finished.
	FinishedAt metav1.Time `json:"finishedAt" protobuf:"bytes,2,opt,name=finishedAt"`
	// removed lists the removed data. Maximum: 64 entries.
	// +listType=atomic
	// +optional
	Removed []string `json:"removed,omitempty" protobuf:"bytes,3,rep,name=removed"`
	// remaining lists the tenant's data that could not be removed. It is empty if the scrub
	// succeeded.
	// +listType=atomic
	// +optional
	Remaining []string `json:"remaining,omitempty" protobuf:"bytes,4,rep,name=remaining"`
}

// MacNodeHardware is the hardware and software that the agent found on the Mac.
type MacNodeHardware struct {
	// modelIdentifier is the model identifier reported by macOS, such as "Mac16,10".
	// +optional
	ModelIdentifier string `json:"modelIdentifier,omitempty" protobuf:"bytes,1,opt,name=modelIdentifier"`
	// serialNumber is the serial number reported by the host.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
	// cpu is the number of CPU cores.
	// +optional
	CPU scalar.Quantity `json:"cpu,omitempty,omitzero" protobuf:"bytes,3,opt,name=cpu"`
	// memory is the amount of memory in bytes.
	// +optional
	Memory scalar.Quantity `json:"memory,omitempty,omitzero" protobuf:"bytes,4,opt,name=memory"`
	// storage is the size of the disk in bytes.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,5,opt,name=storage"`
	// freeStorage is the free disk space in bytes, rounded down to whole GiB.
	// +optional
	FreeStorage scalar.Quantity `json:"freeStorage,omitempty,omitzero" protobuf:"bytes,6,opt,name=freeStorage"`
	// macOSVersion is the macOS version of the host, such as "26.1".
	// +optional
	MacOSVersion string `json:"macOSVersion,omitempty" protobuf:"bytes,7,opt,name=macOSVersion"`
	// agentVersion is the version of the agent.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty" protobuf:"bytes,8,opt,name=agentVersion"`
}

// CachedImage is an image on the disk of a Mac.
type CachedImage struct {
	// name is the name of the MacOSImage.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// digest is the digest of the image's manifest, such as "sha256:...".
	// +optional
	Digest string `json:"digest,omitempty" protobuf:"bytes,2,opt,name=digest"`
	// sizeBytes is the disk space that the image takes, in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty" protobuf:"varint,3,opt,name=sizeBytes"`
	// lastUsedAt is the time at which an instance last started from the image.
	// +optional
	LastUsedAt *metav1.Time `json:"lastUsedAt,omitempty" protobuf:"bytes,4,opt,name=lastUsedAt"`
}

// ImageCheck is the result of an agent's verification of an image manifest in its registry.
type ImageCheck struct {
	// name is the name of the MacOSImage.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// observedGeneration is the generation of the MacOSImage that was verified.
	ObservedGeneration int64 `json:"observedGeneration" protobuf:"varint,2,opt,name=observedGeneration"`
	// reason is the result: Verified, or a reason of the condition Ready of the MacOSImage.
	Reason string `json:"reason" protobuf:"bytes,3,opt,name=reason"`
	// message is a human-readable description of the result.
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

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeRestore restores the lease and the instances of a Mac from its witness, after the server
// has lost history. A cluster administrator creates it as a subresource of the MacNode. With a dry
// run, it returns the plan and changes nothing.
type MacNodeRestore struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// steps are the changes that were made, or that a dry run would make. Populated by the server.
	// +listType=atomic
	// +optional
	Steps []string `json:"steps,omitempty" protobuf:"bytes,2,rep,name=steps"`
	// witnessHash is the hash of the witness that the restore follows. A dry run returns it, and
	// the restore requires it: an administrator restores only what a dry run has shown.
	// +optional
	WitnessHash string `json:"witnessHash,omitempty" protobuf:"bytes,3,opt,name=witnessHash"`
	// wrongMacs are the names of the Macs whose witnesses have the same lease, instances or
	// identities as this one, and are wrong. Without them, no Mac of a conflict is restored.
	// Maximum: 16 entries.
	// +listType=set
	// +optional
	WrongMacs []string `json:"wrongMacs,omitempty" protobuf:"bytes,4,rep,name=wrongMacs"`
}
