package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNode is one physical Mac. Its name is the name of the Kubernetes Node that the Mac's agent registers.
type MacNode struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacNodeSpec
	Status MacNodeStatus
}

// MacNodeSpec says which Mac this is and where it stands.
type MacNodeSpec struct {
	SerialNumber string
	ClassName    string
	Location     MacNodeLocation
	Maintenance  bool
}

// MacNodeLocation says where a Mac stands.
type MacNodeLocation struct {
	Site  string
	Rack  string
	Shelf string
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
	Phase             MacNodePhase
	LeaseRef          *LeaseReference
	EarliestReleaseAt *metav1.Time
	PrefetchImages    []string
	ReleasingSince    *metav1.Time
	RunningVMs        int32
	BootID            string
	Quarantine        *Quarantine
	Scrub             *ScrubReport
	Hardware          *MacNodeHardware
	Images            []CachedImage
	Conditions        []metav1.Condition
	ImageChecks       []ImageCheck
}

// LeaseReference names a MacNodeLease.
type LeaseReference struct {
	Namespace string
	Name      string
	UID       types.UID
}

// Quarantine says why nothing is placed on a Mac.
type Quarantine struct {
	Reason       string
	Message      string
	Since        metav1.Time
	BootID       string
	EndInstances []string
}

// ScrubReport is an agent's proof that nothing of a tenant is left.
type ScrubReport struct {
	LeaseUID   types.UID
	FinishedAt metav1.Time
	Removed    []string
	Remaining  []string
}

// MacNodeHardware is what the agent found on the Mac.
type MacNodeHardware struct {
	ModelIdentifier string
	SerialNumber    string
	CPU             scalar.Quantity
	Memory          scalar.Quantity
	Storage         scalar.Quantity
	FreeStorage     scalar.Quantity
	MacOSVersion    string
	AgentVersion    string
}

// CachedImage is an image on a Mac's disk.
type CachedImage struct {
	Name       string
	Digest     string
	SizeBytes  int64
	LastUsedAt *metav1.Time
}

// ImageCheck is what an agent found when it verified the manifest of an image in its registry.
type ImageCheck struct {
	Name               string
	ObservedGeneration int64
	Reason             string
	Message            string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeList is a list of MacNodes.
type MacNodeList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []MacNode
}
