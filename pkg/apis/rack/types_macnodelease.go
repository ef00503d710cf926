package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLease is a tenant's lease of one whole Mac, for 24 hours at least. The tenant runs one or two
// MacOSInstances in it. A lease that is deleted before its floor becomes Held, and ends by itself at the floor.
type MacNodeLease struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacNodeLeaseSpec
	Status MacNodeLeaseStatus
}

// MacNodeLeaseSpec is what a tenant asks for.
type MacNodeLeaseSpec struct {
	ClassName       string
	SerialNumber    string
	MinimumDuration *scalar.Duration
	PrefetchImages  []string
	ExpireAfter     *scalar.Duration
}

// MacNodeLeasePhase is where a lease is in its life.
type MacNodeLeasePhase string

const (
	// MacNodeLeasePending means that the lease waits for a Mac.
	MacNodeLeasePending MacNodeLeasePhase = "Pending"
	// MacNodeLeaseBound means that the lease has a Mac.
	MacNodeLeaseBound MacNodeLeasePhase = "Bound"
	// MacNodeLeaseHeld means that the lease was deleted before its floor, and keeps its Mac until then.
	MacNodeLeaseHeld MacNodeLeasePhase = "Held"
	// MacNodeLeaseReleasing means that the floor has passed and the Mac is being emptied and scrubbed.
	MacNodeLeaseReleasing MacNodeLeasePhase = "Releasing"
	// MacNodeLeaseReleased means that the Mac is no longer the tenant's; the object waits for finalizers of others.
	MacNodeLeaseReleased MacNodeLeasePhase = "Released"
)

// Conditions of a lease.
const (
	// MacNodeLeaseConditionBound says whether the lease has a Mac, and if not, why.
	MacNodeLeaseConditionBound = "Bound"
	// MacNodeLeaseConditionMacReady is False while the lease's Mac is offline or in quarantine, and says which. A lease
	// without a Mac does not have it.
	MacNodeLeaseConditionMacReady = "MacReady"
	// MacNodeLeaseConditionReleased is False on a lease that is Releasing, and says what its release waits for.
	MacNodeLeaseConditionReleased = "Released"
	// MacNodeLeaseConditionReady is True while the lease has a Mac that is ready: instances can run on it.
	MacNodeLeaseConditionReady = "Ready"
	// MacNodeLeaseConditionReconciling is True while the lease is not Ready and may become so by itself; absent otherwise.
	MacNodeLeaseConditionReconciling = "Reconciling"
	// MacNodeLeaseConditionStalled is True while the lease does not become Ready by itself; absent otherwise.
	MacNodeLeaseConditionStalled = "Stalled"
)

// Reasons of the condition Bound=False.
const (
	// ReasonUnknownClass means that there is no MacNodeClass of that name.
	ReasonUnknownClass = "UnknownClass"
	// ReasonEmptyClass means that the class has no Macs.
	ReasonEmptyClass = "EmptyClass"
	// ReasonNoMacAvailable means that no Mac of the class is free.
	ReasonNoMacAvailable = "NoMacAvailable"
	// ReasonMacNotAvailable means that no Mac of the class with the serial number is free. Tenants do not learn why.
	ReasonMacNotAvailable = "MacNotAvailable"
)

// ReasonMacOffline is the reason of the condition MacReady=False while the Mac is offline. The reason is that of the
// quarantine while the Mac is in one.
const ReasonMacOffline = "Offline"

// MacNodeLeaseStatus is what a tenant has got.
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

	// NamespaceUID is the UID of the namespace that the lease was created in, set by the server.
	NamespaceUID types.UID
	// RequestedBy is the user who created the lease, set by the server.
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
	// Stop is set at the hold of the lease: the instance must stop.
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

// MacNodeLeaseBinding joins a lease and a MacNode. It is created by the controllers as a subresource of the lease.
type MacNodeLeaseBinding struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	NodeName string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseRelease parts a lease and its MacNode, once the floor has passed and the Mac is empty. It is
// created by the controllers as a subresource of the lease.
type MacNodeLeaseRelease struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	NodeTaints []string
}
