package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecord is one entry of the ledger: what happened to a chassis, when, and by whom. Records are
// written by the server in the transaction of the change they prove, are never changed, and outlive their namespace.
type AuditRecord struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// time is when it happened, by the server's clock. Within a chassis it never runs backwards.
	// +optional
	Time metav1.MicroTime `json:"time,omitempty" protobuf:"bytes,2,opt,name=time"`
	// type says what happened.
	Type AuditRecordType `json:"type" protobuf:"bytes,3,opt,name=type,casttype=AuditRecordType"`
	// actor is who asked for it.
	// +optional
	Actor AuditActor `json:"actor,omitempty" protobuf:"bytes,4,opt,name=actor"`
	// requestID is the ID that the server gave the request, which is also in its audit log.
	// +optional
	RequestID string `json:"requestID,omitempty" protobuf:"bytes,5,opt,name=requestID"`
	// chassis is the Mac that it happened to.
	// +optional
	Chassis AuditChassis `json:"chassis,omitempty" protobuf:"bytes,6,opt,name=chassis"`
	// tenant is the namespace that the Mac belonged to.
	// +optional
	Tenant string `json:"tenant,omitempty" protobuf:"bytes,7,opt,name=tenant"`
	// lease is the lease concerned.
	// +optional
	Lease *AuditReference `json:"lease,omitempty" protobuf:"bytes,8,opt,name=lease"`
	// instance is the instance concerned.
	// +optional
	Instance *AuditReference `json:"instance,omitempty" protobuf:"bytes,9,opt,name=instance"`
	// sequence numbers the records of a chassis, from 1, without a gap.
	// +optional
	Sequence int64 `json:"sequence,omitempty" protobuf:"varint,10,opt,name=sequence"`
	// previousHash is the hash of the chassis' record before this one, empty in the first.
	// +optional
	PreviousHash string `json:"previousHash,omitempty" protobuf:"bytes,11,opt,name=previousHash"`
	// hash is the SHA-256 of this record and previousHash, in hexadecimal.
	// +optional
	Hash string `json:"hash,omitempty" protobuf:"bytes,12,opt,name=hash"`
	// details are the particulars of the type.
	// +optional
	Details AuditDetails `json:"details,omitempty" protobuf:"bytes,13,opt,name=details"`
	// claimedRequestID is the ID that the request came with: that of the kube-apiserver that passed it on, or whatever the client sent as
	// Audit-ID. It finds the request in other logs, and proves nothing.
	// +optional
	ClaimedRequestID string `json:"claimedRequestID,omitempty" protobuf:"bytes,14,opt,name=claimedRequestID"`
}

// AuditRecordType says what happened.
type AuditRecordType string

const (
	// LeaseBound: a Mac became a tenant's. Details: boundAt, earliestReleaseAt, requestedBy.
	LeaseBound AuditRecordType = "LeaseBound"
	// LeaseHeld: a lease was deleted before its floor. Details: attemptedAt, earliestReleaseAt, remaining.
	LeaseHeld AuditRecordType = "LeaseHeld"
	// FloorLengthened: a lease's floor was moved forward. Details: boundAt, earliestReleaseAt, previousEarliestReleaseAt.
	FloorLengthened AuditRecordType = "FloorLengthened"
	// LeaseReleased: a Mac stopped being a tenant's. Details: boundAt, earliestReleaseAt, releasedAt, duration, nodeTaints.
	LeaseReleased AuditRecordType = "LeaseReleased"
	// InstanceStarted: a virtual machine runs. Details: localVMs, machineID, macAddress.
	InstanceStarted AuditRecordType = "InstanceStarted"
	// InstanceStopped: a virtual machine has ended. Details: localVMs, machineID, macAddress, reason.
	InstanceStopped AuditRecordType = "InstanceStopped"
	// InstanceRejected: an instance was refused. Details: layer, reason, message, count.
	InstanceRejected AuditRecordType = "InstanceRejected"
	// CrossTenantRejected: one tenant reached for another's Mac. Details: sourceNamespace, layer, reason, message, count.
	CrossTenantRejected AuditRecordType = "CrossTenantRejected"
	// FloorTamperRejected: somebody tried to move a floor. Details: reason, message, count.
	FloorTamperRejected AuditRecordType = "FloorTamperRejected"
	// NodeQuarantined: a Mac was taken out of use. Details: reason, message.
	NodeQuarantined AuditRecordType = "NodeQuarantined"
	// NodeRecovered: a Mac's quarantine ended. Details: reason, message.
	NodeRecovered AuditRecordType = "NodeRecovered"
)

// AuditLayer is the stop that refused something.
type AuditLayer string

const (
	// LayerRegistry is the API server.
	LayerRegistry AuditLayer = "Registry"
	// LayerScheduler is the Kubernetes scheduler.
	LayerScheduler AuditLayer = "Scheduler"
	// LayerAgent is the agent on the Mac.
	LayerAgent AuditLayer = "Agent"
	// LayerKernel is the kernel of macOS.
	LayerKernel AuditLayer = "Kernel"
)

// AuditActor is who asked for a change.
type AuditActor struct {
	// username is the name of the user.
	// +optional
	Username string `json:"username,omitempty" protobuf:"bytes,1,opt,name=username"`
	// uid is the UID of the user.
	// +optional
	UID string `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid"`
	// groups are the groups of the user.
	// +listType=atomic
	// +optional
	Groups []string `json:"groups,omitempty" protobuf:"bytes,3,rep,name=groups"`
}

// AuditChassis names a Mac.
type AuditChassis struct {
	// nodeName is the name of the MacNode.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,1,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
}

// AuditReference names an object in a namespace.
type AuditReference struct {
	// namespace is the namespace of the object.
	// +optional
	Namespace string `json:"namespace,omitempty" protobuf:"bytes,1,opt,name=namespace"`
	// name is the name of the object.
	// +optional
	Name string `json:"name,omitempty" protobuf:"bytes,2,opt,name=name"`
	// uid is the UID of the object.
	// +optional
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,3,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// AuditDetails are the particulars of a record; which are set depends on its type.
type AuditDetails struct {
	// boundAt is when the lease was bound.
	// +optional
	BoundAt *metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,1,opt,name=boundAt"`
	// earliestReleaseAt is the lease's floor.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,2,opt,name=earliestReleaseAt"`
	// attemptedAt is when the deletion was asked for.
	// +optional
	AttemptedAt *metav1.Time `json:"attemptedAt,omitempty" protobuf:"bytes,3,opt,name=attemptedAt"`
	// remaining is what remained until the floor.
	// +optional
	Remaining *metav1.Duration `json:"remaining,omitempty" protobuf:"bytes,4,opt,name=remaining"`
	// releasedAt is when the Mac was released.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty" protobuf:"bytes,5,opt,name=releasedAt"`
	// duration is how long the Mac was the tenant's.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty" protobuf:"bytes,6,opt,name=duration"`
	// nodeTaints are the taints that were seen on the Kubernetes Node at the release.
	// +listType=atomic
	// +optional
	NodeTaints []string `json:"nodeTaints,omitempty" protobuf:"bytes,7,rep,name=nodeTaints"`
	// localVMs is the number of virtual machines on the Mac after the change.
	// +optional
	LocalVMs *int32 `json:"localVMs,omitempty" protobuf:"varint,8,opt,name=localVMs"`
	// machineID is the machine identifier of the virtual machine.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,9,opt,name=machineID"`
	// macAddress is the network address of the virtual machine.
	// +optional
	MACAddress string `json:"macAddress,omitempty" protobuf:"bytes,10,opt,name=macAddress"`
	// layer is the stop that refused.
	// +optional
	Layer AuditLayer `json:"layer,omitempty" protobuf:"bytes,11,opt,name=layer,casttype=AuditLayer"`
	// sourceNamespace is the namespace from which another tenant's Mac was reached for.
	// +optional
	SourceNamespace string `json:"sourceNamespace,omitempty" protobuf:"bytes,12,opt,name=sourceNamespace"`
	// reason is a word for the cause.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,13,opt,name=reason"`
	// message says more about the cause.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,14,opt,name=message"`
	// count is how many identical rejections within a minute the record stands for; 0 means 1.
	// +optional
	Count int64 `json:"count,omitempty" protobuf:"varint,15,opt,name=count"`
	// previousEarliestReleaseAt is the floor that a longer one replaced.
	// +optional
	PreviousEarliestReleaseAt *metav1.Time `json:"previousEarliestReleaseAt,omitempty" protobuf:"bytes,16,opt,name=previousEarliestReleaseAt"`
	// requestedBy is the user who created the lease that was bound, without groups.
	// +optional
	RequestedBy *AuditActor `json:"requestedBy,omitempty" protobuf:"bytes,17,opt,name=requestedBy"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecordList is a list of AuditRecords.
type AuditRecordList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []AuditRecord `json:"items" protobuf:"bytes,2,rep,name=items"`
}
