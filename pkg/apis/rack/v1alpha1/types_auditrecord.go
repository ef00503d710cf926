package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecord is an entry of the ledger: an event on a chassis, with its time and actor. The server
// writes it in the transaction of the change that it proves. Records are immutable and outlive
// their namespace.
type AuditRecord struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// time is the time of the event, by the clock of the server. It never decreases within a
	// chassis.
	// +optional
	Time metav1.MicroTime `json:"time,omitempty" protobuf:"bytes,2,opt,name=time"`
	// type is the type of the event.
	Type AuditRecordType `json:"type" protobuf:"bytes,3,opt,name=type,casttype=AuditRecordType"`
	// actor is the user who made the request.
	// +optional
	Actor AuditActor `json:"actor,omitempty" protobuf:"bytes,4,opt,name=actor"`
	// requestID is the ID that the server gave the request. It is also in the audit log of the
	// server.
	// +optional
	RequestID string `json:"requestID,omitempty" protobuf:"bytes,5,opt,name=requestID"`
	// chassis is the Mac that the event is about.
	// +optional
	Chassis AuditChassis `json:"chassis,omitempty" protobuf:"bytes,6,opt,name=chassis"`
	// tenant is the namespace that had leased the Mac.
	// +optional
	Tenant string `json:"tenant,omitempty" protobuf:"bytes,7,opt,name=tenant"`
	// lease is the lease that the event is about.
	// +optional
	Lease *AuditReference `json:"lease,omitempty" protobuf:"bytes,8,opt,name=lease"`
	// instance is the instance that the event is about.
	// +optional
	Instance *AuditReference `json:"instance,omitempty" protobuf:"bytes,9,opt,name=instance"`
	// sequence is the number of the record in its chain, starting at 1 and without gaps. Each
	// chassis has a chain. Records without a Mac are in the chain of their namespace.
	// +optional
	Sequence int64 `json:"sequence,omitempty" protobuf:"varint,10,opt,name=sequence"`
	// previousHash is the hash of the previous record of the chain. It is empty in the first
	// record.
	// +optional
	PreviousHash string `json:"previousHash,omitempty" protobuf:"bytes,11,opt,name=previousHash"`
	// hash is the hexadecimal SHA-256 hash of this record, including previousHash.
	// +optional
	Hash string `json:"hash,omitempty" protobuf:"bytes,12,opt,name=hash"`
	// details are the details of the event. The type determines which fields are set.
	// +optional
	Details AuditDetails `json:"details,omitempty" protobuf:"bytes,13,opt,name=details"`
	// claimedRequestID is the Audit-ID of the incoming request, set by kube-apiserver or by the
	// client. It helps to find the request in other logs and proves nothing.
	// +optional
	ClaimedRequestID string `json:"claimedRequestID,omitempty" protobuf:"bytes,14,opt,name=claimedRequestID"`
}

// AuditRecordType is the type of a recorded event.
type AuditRecordType string

const (
	// LeaseBound: a lease was bound to a Mac. Details: boundAt, earliestReleaseAt, requestedBy,
	// className, sku.
	LeaseBound AuditRecordType = "LeaseBound"
	// LeaseHeld: a lease was deleted before its floor. Details: attemptedAt, earliestReleaseAt,
	// remaining.
	LeaseHeld AuditRecordType = "LeaseHeld"
	// FloorLengthened: the floor of a lease was moved forward. Details: boundAt, earliestReleaseAt,
	// previousEarliestReleaseAt.
	FloorLengthened AuditRecordType = "FloorLengthened"
	// LeaseReleased: a lease released its Mac. Details: boundAt, earliestReleaseAt, attemptedAt,
	// releasedAt, duration, nodeTaints.
	LeaseReleased AuditRecordType = "LeaseReleased"
	// InstanceStarted: a virtual machine was granted its start. Details: localVMs, machineID,
	// macAddress.
	InstanceStarted AuditRecordType = "InstanceStarted"
	// InstanceStopped: a virtual machine ended. Details: localVMs, machineID, macAddress, reason.
	InstanceStopped AuditRecordType = "InstanceStopped"
	// InstanceRejected: an instance was refused. Details: layer, reason, message, count.
	InstanceRejected AuditRecordType = "InstanceRejected"
	// CrossTenantRejected: a tenant tried to use the Mac of another tenant. Details:
	// sourceNamespace, layer, reason, message, count.
	CrossTenantRejected AuditRecordType = "CrossTenantRejected"
	// FloorTamperRejected: an attempt to move or remove a floor was refused. Details: reason,
	// message, count.
	FloorTamperRejected AuditRecordType = "FloorTamperRejected"
	// NodeQuarantined: a Mac was put in quarantine. Details: reason, message.
	NodeQuarantined AuditRecordType = "NodeQuarantined"
	// NodeRecovered: the quarantine of a Mac ended. Details: reason, message.
	NodeRecovered AuditRecordType = "NodeRecovered"
)

// AuditLayer is the layer of the system that refused a request.
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

// AuditActor is the user who requested a change.
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

// AuditChassis is a reference to a Mac.
type AuditChassis struct {
	// nodeName is the name of the MacNode.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,1,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
}

// AuditReference is a reference to an object in a namespace.
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

// AuditDetails are the details of a record. The type of the record determines which fields are set.
type AuditDetails struct {
	// boundAt is the time at which the lease was bound.
	// +optional
	BoundAt *metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,1,opt,name=boundAt"`
	// earliestReleaseAt is the floor of the lease.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,2,opt,name=earliestReleaseAt"`
	// attemptedAt is the time of the deletion request.
	// +optional
	AttemptedAt *metav1.Time `json:"attemptedAt,omitempty" protobuf:"bytes,3,opt,name=attemptedAt"`
	// remaining is the time that remained until the floor.
	// +optional
	Remaining *metav1.Duration `json:"remaining,omitempty" protobuf:"bytes,4,opt,name=remaining"`
	// releasedAt is the time at which the Mac was released.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty" protobuf:"bytes,5,opt,name=releasedAt"`
	// duration is the time for which the Mac was leased.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty" protobuf:"bytes,6,opt,name=duration"`
	// nodeTaints are the taints of the Kubernetes Node at the time of the release.
	// +listType=atomic
	// +optional
	NodeTaints []string `json:"nodeTaints,omitempty" protobuf:"bytes,7,rep,name=nodeTaints"`
	// localVMs is the number of virtual machines on the Mac after the change.
	// +optional
	LocalVMs *int32 `json:"localVMs,omitempty" protobuf:"varint,8,opt,name=localVMs"`
	// machineID is the machine identifier of the virtual machine.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,9,opt,name=machineID"`
	// macAddress is the MAC address of the virtual machine.
	// +optional
	MACAddress string `json:"macAddress,omitempty" protobuf:"bytes,10,opt,name=macAddress"`
	// layer is the layer that refused the request.
	// +optional
	Layer AuditLayer `json:"layer,omitempty" protobuf:"bytes,11,opt,name=layer,casttype=AuditLayer"`
	// sourceNamespace is the namespace that tried to use the Mac of another tenant.
	// +optional
	SourceNamespace string `json:"sourceNamespace,omitempty" protobuf:"bytes,12,opt,name=sourceNamespace"`
	// reason is the cause as a single CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,13,opt,name=reason"`
	// message is a human-readable description of the cause.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,14,opt,name=message"`
	// count is the number of identical rejections within a minute that the record stands for. 0
	// means 1.
	// +optional
	Count int64 `json:"count,omitempty" protobuf:"varint,15,opt,name=count"`
	// previousEarliestReleaseAt is the floor before it was moved forward.
	// +optional
	PreviousEarliestReleaseAt *metav1.Time `json:"previousEarliestReleaseAt,omitempty" protobuf:"bytes,16,opt,name=previousEarliestReleaseAt"`
	// requestedBy is the user who created the lease that was bound, without groups.
	// +optional
	RequestedBy *AuditActor `json:"requestedBy,omitempty" protobuf:"bytes,17,opt,name=requestedBy"`
	// className is the name of the MacNodeClass of the Mac at the binding.
	// +optional
	ClassName string `json:"className,omitempty" protobuf:"bytes,18,opt,name=className"`
	// sku is the billing SKU of the MacNodeClass at the binding.
	// +optional
	SKU string `json:"sku,omitempty" protobuf:"bytes,19,opt,name=sku"`
	// witnessedSequence is the sequence number of the last record that the Mac has seen, if the
	// chain does not have it. NodeQuarantined and NodeRecovered have it at the beginning and at the
	// end of such a quarantine.
	// +optional
	WitnessedSequence int64 `json:"witnessedSequence,omitempty" protobuf:"varint,20,opt,name=witnessedSequence"`
	// witnessedHash is the hash of that record.
	// +optional
	WitnessedHash string `json:"witnessedHash,omitempty" protobuf:"bytes,21,opt,name=witnessedHash"`
	// startGrantedAt is the time at which the start of a restored instance was granted.
	// +optional
	StartGrantedAt *metav1.Time `json:"startGrantedAt,omitempty" protobuf:"bytes,22,opt,name=startGrantedAt"`
	// lostAfter is the time of the last record from before a loss. It is not set if the server
	// cannot know it.
	// +optional
	LostAfter *metav1.Time `json:"lostAfter,omitempty" protobuf:"bytes,23,opt,name=lostAfter"`
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
