package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecord is one entry of the ledger: what happened to a chassis, when, and by whom. Records are
// written by the server in the transaction of the change they prove, are never changed, and outlive their namespace.
type AuditRecord struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Time      metav1.MicroTime
	Type      AuditRecordType
	Actor     AuditActor
	RequestID string
	// ClaimedRequestID is the ID that the request came with.
	ClaimedRequestID string
	Chassis          AuditChassis
	Tenant           string
	Lease            *AuditReference
	Instance         *AuditReference
	Sequence         int64
	PreviousHash     string
	Hash             string
	Details          AuditDetails
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
	Username string
	UID      string
	Groups   []string
}

// AuditChassis names a Mac.
type AuditChassis struct {
	NodeName     string
	SerialNumber string
}

// AuditReference names an object in a namespace.
type AuditReference struct {
	Namespace string
	Name      string
	UID       types.UID
}

// AuditDetails are the particulars of a record; which are set depends on its type.
type AuditDetails struct {
	BoundAt           *metav1.Time
	EarliestReleaseAt *metav1.Time
	AttemptedAt       *metav1.Time
	Remaining         *metav1.Duration
	ReleasedAt        *metav1.Time
	Duration          *metav1.Duration
	NodeTaints        []string
	LocalVMs          *int32
	MachineID         string
	MACAddress        string
	Layer             AuditLayer
	SourceNamespace   string
	Reason            string
	Message           string
	Count             int64

	// PreviousEarliestReleaseAt is the floor that FloorLengthened replaced.
	PreviousEarliestReleaseAt *metav1.Time
	// RequestedBy is the user who created the lease that was bound, without groups.
	RequestedBy *AuditActor
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecordList is a list of AuditRecords.
type AuditRecordList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []AuditRecord
}
