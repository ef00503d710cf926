package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNode is one physical Mac. Its name is the name of the Kubernetes Node that the Mac's agent
// registers.
type MacNode struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacNodeSpec
	Status MacNodeStatus
}

// MacNodeSpec describes a Mac and its location.
type MacNodeSpec struct {
	SerialNumber string
	ClassName    string
	Location     MacNodeLocation
	Maintenance  bool
}

// MacNodeLocation is the location of a Mac.
type MacNodeLocation struct {
	Site  string
	Rack  string
	Shelf string
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
	Caches            []LeaseCache
	Ledger            *MacNodeLedger
	Witness           *MacNodeWitness
}

// LeaseReference is a reference to a MacNodeLease.
type LeaseReference struct {
	Namespace string
	Name      string
	UID       types.UID
	// BoundAt, HeldAt and NamespaceUID are those of the lease.
	BoundAt      *metav1.Time
	HeldAt       *metav1.Time
	NamespaceUID types.UID
}

// Quarantine is the state of a Mac on which no instance can start.
type Quarantine struct {
	Reason       string
	Message      string
	Since        metav1.Time
	BootID       string
	EndInstances []string
}

// ScrubReport is an agent's report of the removal of a tenant's data.
type ScrubReport struct {
	LeaseUID   types.UID
	FinishedAt metav1.Time
	Removed    []string
	Remaining  []string
}

// MacNodeHardware is the hardware and software that the agent found on the Mac.
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

// CachedImage is an image on the disk of a Mac.
type CachedImage struct {
	Name       string
	Digest     string
	SizeBytes  int64
	LastUsedAt *metav1.Time
}

// ImageCheck is the result of an agent's verification of an image manifest in its registry.
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

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeRestore restores the lease and the instances of a Mac from its witness. It is created as a
// subresource of the MacNode.
type MacNodeRestore struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Steps       []string
	WitnessHash string
	WrongMacs   []string
}
