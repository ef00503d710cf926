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

// MacNodeLease is a tenant's lease of one whole Mac for at least 24 hours. The tenant can run up to
// two MacOSInstances in it. A lease that is deleted before its floor becomes Held and ends
// automatically at the floor.
type MacNodeLease struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the specification of the desired lease.
	Spec MacNodeLeaseSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is the most recently observed status of the lease. Populated by the system. Read-only.
	// +optional
	Status MacNodeLeaseStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeLeaseSpec is the specification of a lease.
type MacNodeLeaseSpec struct {
	// className is the name of the MacNodeClass of the Mac. Defaults to the defaultClassName of the
	// RackConfig. It is immutable.
	// +optional
	ClassName string `json:"className,omitempty" protobuf:"bytes,1,opt,name=className"`
	// serialNumber restricts the lease to the Mac with this serial number. It is immutable.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
	// minimumDuration is the minimum time for which the lease keeps its Mac, starting at the
	// binding. It is a duration such as 24h, 36h30m or 3d, with the units d (24 hours), h, m and s.
	// It can be lengthened but not shortened. Minimum: 24h. Defaults to 24h.
	// +optional
	MinimumDuration *scalar.Duration `json:"minimumDuration,omitempty" protobuf:"bytes,3,opt,name=minimumDuration"`
	// prefetchImages lists the names of MacOSImages to pull onto the Mac as soon as the lease is
	// bound.
	// +listType=set
	// +optional
	PrefetchImages []string `json:"prefetchImages,omitempty" protobuf:"bytes,4,rep,name=prefetchImages"`
	// expireAfter is the time after which the lease is deleted automatically, starting at the
	// binding. It is a duration such as 72h or 3d, with the units d (24 hours), h, m and s. It must
	// not be shorter than minimumDuration. If not specified, the lease does not expire.
	// +optional
	ExpireAfter *scalar.Duration `json:"expireAfter,omitempty" protobuf:"bytes,5,opt,name=expireAfter"`
	// caches are directories on the Mac that instances of the lease can use, one after another or
	// both at once. They are erased when the Mac is released. Their sizes count against the storage
	// of the Mac. The list is immutable. Maximum: 8 caches.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Caches []LeaseCache `json:"caches,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,6,rep,name=caches"`
}

// LeaseCache is a directory on the Mac of a lease.
type LeaseCache struct {
	// name is the name of the cache, a DNS label.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// sizeLimit is the maximum size of the cache in bytes, such as 50Gi. Must be whole MiB, from
	// 64Mi to 16Ti. A write to a full cache fails in the instance.
	SizeLimit scalar.Quantity `json:"sizeLimit,omitzero" protobuf:"bytes,2,opt,name=sizeLimit"`
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
	// phase is a summary of the status: Pending, Bound, Held, Releasing or Released.
	// +optional
	Phase MacNodeLeasePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacNodeLeasePhase"`
	// boundAt is the time at which the lease was bound to its Mac, by the clock of the server and
	// rounded up to a second. It never changes.
	// +optional
	BoundAt *metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,2,opt,name=boundAt"`
	// earliestReleaseAt is the floor: boundAt plus minimumDuration. The tenant keeps the Mac, and
	// is billed for it, at least until then. It never moves backwards.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,3,opt,name=earliestReleaseAt"`
	// heldAt is the time at which the lease became Held.
	// +optional
	HeldAt *metav1.Time `json:"heldAt,omitempty" protobuf:"bytes,4,opt,name=heldAt"`
	// releasedAt is the time at which the lease released its Mac.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty" protobuf:"bytes,5,opt,name=releasedAt"`
	// nodeName is the name of the MacNode that the lease is bound to.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,6,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,7,opt,name=serialNumber"`
	// instances lists the instances that take a slot of the lease: those that have not ended.
	// Maximum: 2 entries.
	// +listType=map
	// +listMapKey=name
	// +optional
	Instances []LeaseSlot `json:"instances,omitempty" protobuf:"bytes,8,rep,name=instances"`
	// conditions are the latest observations of the lease: Ready, Bound, MacReady and Released, and
	// Reconciling or Stalled while the lease is not Ready.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,9,rep,name=conditions"`
	// namespaceUID is the UID of the namespace that the lease was created in. The server sets it
	// once. Users of a later namespace with the same name have no access to the lease.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty" protobuf:"bytes,10,opt,name=namespaceUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// requestedBy is the user who created the lease. The server sets it.
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
	// resources are the resources of the instance, copied from its class.
	// +optional
	Resources MachineResources `json:"resources,omitempty,omitzero" protobuf:"bytes,3,opt,name=resources"`
	// stop is true if the instance existed when the lease became Held. The controllers then stop
	// the instance. Instances created on a Held lease run until the floor.
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

// MacNodeLeaseBinding binds a lease to a MacNode. The controllers create it as a subresource of the
// lease.
type MacNodeLeaseBinding struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// nodeName is the name of the MacNode to bind the lease to.
	NodeName string `json:"nodeName" protobuf:"bytes,2,opt,name=nodeName"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeLeaseRelease releases the MacNode of a lease after the floor has passed and the Mac is
// empty. The controllers create it as a subresource of the lease.
type MacNodeLeaseRelease struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// nodeTaints lists the current taints of the Kubernetes Node as key=value:effect. It must
	// include macrack.io/unleased:NoSchedule and no taint of a tenant.
	// +listType=atomic
	// +optional
	NodeTaints []string `json:"nodeTaints,omitempty" protobuf:"bytes,2,rep,name=nodeTaints"`
}
