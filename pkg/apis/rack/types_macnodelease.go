package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLease is a tenant's lease of one whole Mac for at least 24 hours. The tenant can run up to
// two MacOSInstances in it. A lease that is deleted before its floor becomes Held and ends
// automatically at the floor.
type MacNodeLease struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacNodeLeaseSpec
	Status MacNodeLeaseStatus
}

// MacNodeLeaseSpec is the specification of a lease.
type MacNodeLeaseSpec struct {
	ClassName       string
	SerialNumber    string
	MinimumDuration *scalar.Duration
	PrefetchImages  []string
	ExpireAfter     *scalar.Duration
	Caches          []LeaseCache
}

// LeaseCache is a directory on the Mac of a lease.
type LeaseCache struct {
	Name      string
	SizeLimit scalar.Quantity
}

// MacNodeLeasePhase is the phase in the lifecycle of a lease.
type MacNodeLeasePhase string

const (
	// MacNodeLeasePending means that the lease is waiting for a Mac.
	MacNodeLeasePending MacNodeLeasePhase = "Pending"
	// MacNodeLeaseBound means that the lease has a Mac.
	MacNodeLeaseBound MacNodeLeasePhase = "Bound"
	// MacNodeLeaseHeld means that the lease was deleted before its floor and keeps its Mac until
	// the floor.
	MacNodeLeaseHeld MacNodeLeasePhase = "Held"
	// MacNodeLeaseReleasing means that the floor has passed and the Mac is being emptied and
	// scrubbed.
	MacNodeLeaseReleasing MacNodeLeasePhase = "Releasing"
	// MacNodeLeaseReleased means that the Mac has been released; the object remains until its other
	// finalizers are removed.
	MacNodeLeaseReleased MacNodeLeasePhase = "Released"
)

// Types of conditions of a MacNodeLease.
const (
	// MacNodeLeaseConditionBound is True while the lease has a Mac; otherwise its reason is the
	// cause.
	MacNodeLeaseConditionBound = "Bound"
	// MacNodeLeaseConditionMacReady is False while the Mac of the lease is offline or in
	// quarantine; its reason is Offline or that of the quarantine. It is absent while the lease has
	// no Mac.
	MacNodeLeaseConditionMacReady = "MacReady"
	// MacNodeLeaseConditionReleased is False while the lease is Releasing; its message has the step
	// that the release is waiting for.
	MacNodeLeaseConditionReleased = "Released"
	// MacNodeLeaseConditionReady is True while the lease has a ready Mac: instances can run on it.
	MacNodeLeaseConditionReady = "Ready"
	// MacNodeLeaseConditionReconciling is True while the lease can still become Ready without
	// intervention; absent otherwise.
	MacNodeLeaseConditionReconciling = "Reconciling"
	// MacNodeLeaseConditionStalled is True while the lease cannot become Ready without
	// intervention; absent otherwise.
	MacNodeLeaseConditionStalled = "Stalled"
)

// Reasons of the condition Bound=False.
const (
	// ReasonUnknownClass means that the MacNodeClass does not exist.
	ReasonUnknownClass = "UnknownClass"
	// ReasonEmptyClass means that the class has no Macs.
	ReasonEmptyClass = "EmptyClass"
	// ReasonNoMacAvailable means that no Mac of the class is free.
	ReasonNoMacAvailable = "NoMacAvailable"
	// ReasonMacNotAvailable means that no Mac of the class with the serial number is free. The
	// cause is not disclosed to tenants.
	ReasonMacNotAvailable = "MacNotAvailable"
)

// ReasonMacOffline is the reason of the condition MacReady=False while the Mac is offline. While
// the Mac is in quarantine, the condition has the reason of the quarantine.
const ReasonMacOffline = "Offline"

// MacNodeLeaseStatus is the most recently observed status of a lease.
type MacNodeLeaseStatus struct {
	Phase             MacNodeLeasePhase
	BoundAt           *metav1.Time
	EarliestReleaseAt *metav1.Time
	HeldAt            *metav1.Time
	ReleasedAt        *metav1.Time
	NodeName          string
	SerialNumber      string
	Instances         []LeaseSlot
	Conditions        []metav1.Condition

	// NamespaceUID is the UID of the namespace that the lease was created in. The server sets it.
	NamespaceUID types.UID
	// RequestedBy is the user who created the lease. The server sets it.
	RequestedBy *LeaseRequester
}

// LeaseRequester is the user who created a lease.
type LeaseRequester struct {
	Username string
	UID      string
}

// LeaseSlot is a slot of a lease that an instance has taken.
type LeaseSlot struct {
	Name      string
	UID       types.UID
	Resources MachineResources
	// Stop is true if the instance existed when the lease became Held. The controllers then stop
	// the instance.
	Stop bool
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseList is a list of MacNodeLeases.
type MacNodeLeaseList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []MacNodeLease
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseBinding binds a lease to a MacNode. The controllers create it as a subresource of the
// lease.
type MacNodeLeaseBinding struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	NodeName string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseRelease releases the MacNode of a lease after the floor has passed and the Mac is
// empty. The controllers create it as a subresource of the lease.
type MacNodeLeaseRelease struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	NodeTaints []string
}
