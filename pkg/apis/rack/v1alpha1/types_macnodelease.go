package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:method=Bind,verb=create,subresource=binding,input=MacNodeLeaseBinding,result=MacNodeLeaseBinding
// +genclient:method=Release,verb=create,subresource=release,input=MacNodeLeaseRelease,result=MacNodeLeaseRelease
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLease is a tenant's lease of one whole Mac, for 24 hours at least. The tenant runs one or two
// MacOSInstances in it. A lease that is deleted before its floor becomes Held, and ends by itself at the floor.
type MacNodeLease struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is what the tenant asks for.
	Spec MacNodeLeaseSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is what the tenant has got. It is written by the server and the controllers.
	// +optional
	Status MacNodeLeaseStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeLeaseSpec is what a tenant asks for.
type MacNodeLeaseSpec struct {
	// className names the MacNodeClass of the Mac to lease; if empty, the RackConfig's defaultClassName. It cannot be changed.
	// +optional
	ClassName string `json:"className,omitempty" protobuf:"bytes,1,opt,name=className"`
	// serialNumber asks for this very Mac. It cannot be changed.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
	// minimumDuration is the time, from the binding on, for which the Mac belongs to the tenant at least: 24h or more, 24h
	// by default. It can only be lengthened. A duration such as 24h, 36h30m or 3d; the units are d (24 hours), h, m and s.
	// +optional
	MinimumDuration *scalar.Duration `json:"minimumDuration,omitempty" protobuf:"bytes,3,opt,name=minimumDuration"`
	// prefetchImages names MacOSImages to pull onto the Mac as soon as the lease is bound.
	// +listType=set
	// +optional
	PrefetchImages []string `json:"prefetchImages,omitempty" protobuf:"bytes,4,rep,name=prefetchImages"`
	// expireAfter is the time, from the binding on, after which the lease deletes itself: minimumDuration or more. Unset
	// means never. A duration such as 72h or 3d; the units are d (24 hours), h, m and s.
	// +optional
	ExpireAfter *scalar.Duration `json:"expireAfter,omitempty" protobuf:"bytes,5,opt,name=expireAfter"`
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
	// phase is Pending, Bound, Held, Releasing or Released.
	// +optional
	Phase MacNodeLeasePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacNodeLeasePhase"`
	// boundAt is when the Mac became the tenant's, by the server's clock, rounded up to a second. It never changes.
	// +optional
	BoundAt *metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,2,opt,name=boundAt"`
	// earliestReleaseAt is the floor, boundAt + minimumDuration: the Mac stays the tenant's until then, and is billed. It never moves backwards.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,3,opt,name=earliestReleaseAt"`
	// heldAt is when the lease was deleted before its floor.
	// +optional
	HeldAt *metav1.Time `json:"heldAt,omitempty" protobuf:"bytes,4,opt,name=heldAt"`
	// releasedAt is when the Mac stopped being the tenant's.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty" protobuf:"bytes,5,opt,name=releasedAt"`
	// nodeName is the MacNode of the lease.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,6,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,7,opt,name=serialNumber"`
	// instances is the slot table: the instances that have not ended, two at most.
	// +listType=map
	// +listMapKey=name
	// +optional
	Instances []LeaseSlot `json:"instances,omitempty" protobuf:"bytes,8,rep,name=instances"`
	// conditions are Ready, Bound (why the lease is pending), MacReady (what is wrong with its Mac), Released (why it is
	// still releasing), and Reconciling or Stalled while it is not Ready.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,9,rep,name=conditions"`
	// namespaceUID is the UID of the namespace that the lease was created in. The server sets it once. Users of a later namespace of the same name
	// have nothing to do with the lease.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty" protobuf:"bytes,10,opt,name=namespaceUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// requestedBy is the user who created the lease. The server sets it once.
	// +optional
	RequestedBy *LeaseRequester `json:"requestedBy,omitempty" protobuf:"bytes,11,opt,name=requestedBy"`
}

// LeaseRequester is the user who created a lease.
type LeaseRequester struct {
	// username is the name of the user.
	// +optional
	Username string `json:"username,omitempty" protobuf:"bytes,1,opt,name=username"`
	// uid is the UID of the user.
	// +optional
	UID string `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid"`
}

// LeaseSlot is a slot of a lease that an instance has taken.
type LeaseSlot struct {
	// name is the name of the MacOSInstance.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// uid is the UID of the MacOSInstance.
	UID types.UID `json:"uid" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// resources is what the instance's class gives it: cores, bytes of memory, bytes of storage.
	// +optional
	Resources MachineResources `json:"resources,omitempty,omitzero" protobuf:"bytes,3,opt,name=resources"`
	// stop is true if the instance was in the slot when the lease was held: the controllers stop the instance.
	// Instances created on a Held lease continue to run until the floor.
	// +optional
	Stop bool `json:"stop,omitempty" protobuf:"varint,4,opt,name=stop"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseList is a list of MacNodeLeases.
type MacNodeLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []MacNodeLease `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseBinding joins a lease and a MacNode. It is created by the controllers as a subresource of the lease.
type MacNodeLeaseBinding struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// nodeName is the MacNode to bind the lease to.
	NodeName string `json:"nodeName" protobuf:"bytes,2,opt,name=nodeName"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseRelease parts a lease and its MacNode, once the floor has passed and the Mac is empty. It is
// created by the controllers as a subresource of the lease.
type MacNodeLeaseRelease struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// nodeTaints are the taints of the Kubernetes Node as key=value:effect, read just before. macrack.io/unleased:NoSchedule must be among them, and no tenant's.
	// +listType=atomic
	// +optional
	NodeTaints []string `json:"nodeTaints,omitempty" protobuf:"bytes,2,rep,name=nodeTaints"`
}
