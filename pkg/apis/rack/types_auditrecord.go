package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecord is an entry of the ledger: an event on a chassis, with its time and actor. The server
// writes it in the transaction of the change that it proves. Records are immutable and outlive
// their namespace.
type AuditRecord struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Time      metav1.MicroTime
	Type      AuditRecordType
	Actor     AuditActor
	RequestID string
	// ClaimedRequestID is the Audit-ID of the incoming request.
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
	Username string
	UID      string
	Groups   []string
}

// AuditChassis is a reference to a Mac.
type AuditChassis struct {
	NodeName     string
	SerialNumber string
}

// AuditReference is a reference to an object in a namespace.
type AuditReference struct {
	Namespace string
	Name      string
	UID       types.UID
}

// AuditDetails are the details of a record. The type of the record determines which fields are set.
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

	// PreviousEarliestReleaseAt is the floor before it was moved forward.
	PreviousEarliestReleaseAt *metav1.Time
	// RequestedBy is the user who created the lease that was bound, without groups.
	RequestedBy *AuditActor
	// ClassName and SKU are those of the MacNodeClass at the binding.
	ClassName string
	SKU       string
	// WitnessedSequence and WitnessedHash identify the last record that the Mac has seen, in the
	// record of a quarantine because the chain does not have it.
	WitnessedSequence int64
	WitnessedHash     string
	// StartGrantedAt is the time at which the start of a restored instance was granted.
	StartGrantedAt *metav1.Time
	// LostAfter is the time of the last record from before a loss, if it is known.
	LostAfter *metav1.Time
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// AuditRecordList is a list of AuditRecords.
type AuditRecordList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []AuditRecord
}
