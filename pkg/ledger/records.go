package ledger

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

// NewLeaseBound returns the record of a binding, without a SKU. The status must have boundAt and
// earliestReleaseAt.
func NewLeaseBound(lease *rack.MacNodeLease, node *rack.MacNode) *rack.AuditRecord {
	record := ofLease(rack.LeaseBound, lease)
	record.Chassis = chassisOf(node)
	record.Details.BoundAt = lease.Status.BoundAt.DeepCopy()
	record.Details.EarliestReleaseAt = lease.Status.EarliestReleaseAt.DeepCopy()
	record.Details.ClassName = lease.Spec.ClassName
	if by := lease.Status.RequestedBy; by != nil {
		record.Details.RequestedBy = &rack.AuditActor{Username: by.Username, UID: by.UID}
	}
	return record
}

// NewFloorLengthened returns the record of a lease's floor that was moved forward from a time, or
// from nil.
func NewFloorLengthened(lease *rack.MacNodeLease, from *metav1.Time) *rack.AuditRecord {
	record := ofLease(rack.FloorLengthened, lease)
	record.Details.BoundAt = lease.Status.BoundAt.DeepCopy()
	record.Details.EarliestReleaseAt = lease.Status.EarliestReleaseAt.DeepCopy()
	record.Details.PreviousEarliestReleaseAt = from.DeepCopy()
	return record
}

// NewLeaseHeld returns the record of the deletion of a lease at a time before its floor.
func NewLeaseHeld(lease *rack.MacNodeLease, attemptedAt time.Time) *rack.AuditRecord {
	record := ofLease(rack.LeaseHeld, lease)
	record.Details.AttemptedAt = seconds(attemptedAt)
	record.Details.EarliestReleaseAt = lease.Status.EarliestReleaseAt.DeepCopy()
	if floor := lease.Status.EarliestReleaseAt; floor != nil {
		record.Details.Remaining = &metav1.Duration{Duration: max(0, floor.Sub(record.Details.AttemptedAt.Time))}
	}
	return record
}

// NewLeaseReleased returns the record of a release. The lease's status must still name the Mac;
// nodeTaints are what was read back from the Kubernetes Node.
func NewLeaseReleased(lease *rack.MacNodeLease, releasedAt time.Time, nodeTaints []string) *rack.AuditRecord {
	record := ofLease(rack.LeaseReleased, lease)
	record.Details.BoundAt = lease.Status.BoundAt.DeepCopy()
	record.Details.EarliestReleaseAt = lease.Status.EarliestReleaseAt.DeepCopy()
	record.Details.ReleasedAt = seconds(releasedAt)
	record.Details.NodeTaints = nodeTaints
	if boundAt := lease.Status.BoundAt; boundAt != nil {
		record.Details.Duration = &metav1.Duration{Duration: record.Details.ReleasedAt.Sub(boundAt.Time)}
	}
	return record
}

// NewInstanceStarted returns the record of a granted start. localVMs is the maximum number of
// running virtual machines, including this one. lease may be nil.
func NewInstanceStarted(i *instance.MacOSInstance, lease *rack.MacNodeLease, localVMs int32) *rack.AuditRecord {
	record := ofInstance(rack.InstanceStarted, i, lease)
	record.Details.LocalVMs = &localVMs
	record.Details.MachineID = i.Status.MachineID
	record.Details.MACAddress = i.Status.MACAddress
	return record
}

// neverRan begins the message of the record of an instance that was allowed to start and did not.
const neverRan = "its virtual machine never ran: "

// NewInstanceStopped returns the record of the end of an instance with a granted start. The message
// begins with neverRan if its virtual machine never ran. localVMs is the maximum number of running
// virtual machines, excluding this one. lease may be nil.
func NewInstanceStopped(i *instance.MacOSInstance, lease *rack.MacNodeLease, localVMs int32) *rack.AuditRecord {
	record := ofInstance(rack.InstanceStopped, i, lease)
	record.Details.LocalVMs = &localVMs
	record.Details.MachineID = i.Status.MachineID
	record.Details.MACAddress = i.Status.MACAddress
	record.Details.Message = i.Status.Message
	if i.Status.StartedAt == nil {
		record.Details.Message = neverRan + i.Status.Message
	}
	switch {
	case i.Status.StopRequest != nil && i.Status.StopRequest.Reason != "":
		record.Details.Reason = i.Status.StopRequest.Reason
	default:
		record.Details.Reason = string(i.Status.Phase)
	}
	return record
}

// NewInstanceRejected returns the record of the refusal of an instance. The lease may be nil.
func NewInstanceRejected(i *instance.MacOSInstance, lease *rack.MacNodeLease, layer rack.AuditLayer, reason, message string) *rack.AuditRecord {
	record := ofInstance(rack.InstanceRejected, i, lease)
	record.Details.Layer = layer
	record.Details.Reason = reason
	record.Details.Message = message
	return record
}

// NewCrossTenantRejected returns the record of the refusal of a request from sourceNamespace for a
// Mac leased to another tenant. The tenant and the lease of the record are those of the Mac.
func NewCrossTenantRejected(sourceNamespace string, node *rack.MacNode, layer rack.AuditLayer, reason, message string) *rack.AuditRecord {
	record := ofNode(rack.CrossTenantRejected, node, reason, message)
	record.Details.SourceNamespace = sourceNamespace
	record.Details.Layer = layer
	return record
}

// NewFloorTamperRejected returns the record of the refusal to move or to take away a lease's floor.
func NewFloorTamperRejected(lease *rack.MacNodeLease, reason, message string) *rack.AuditRecord {
	record := ofLease(rack.FloorTamperRejected, lease)
	record.Details.EarliestReleaseAt = lease.Status.EarliestReleaseAt.DeepCopy()
	record.Details.Layer = rack.LayerRegistry
	record.Details.Reason = reason
	record.Details.Message = message
	return record
}

// NewNodeQuarantined returns the record of the quarantine in a Mac's status.
func NewNodeQuarantined(node *rack.MacNode) *rack.AuditRecord {
	var reason, message string
	if q := node.Status.Quarantine; q != nil {
		reason, message = q.Reason, q.Message
	}
	return ofNode(rack.NodeQuarantined, node, reason, message)
}

// ReasonRestored is the reason in the records of a restore.
const ReasonRestored = "Restored"

// NewNodeRecovered returns the record of the end of a Mac's quarantine.
func NewNodeRecovered(node *rack.MacNode, reason, message string) *rack.AuditRecord {
	return ofNode(rack.NodeRecovered, node, reason, message)
}

func ofLease(recordType rack.AuditRecordType, lease *rack.MacNodeLease) *rack.AuditRecord {
	return &rack.AuditRecord{
		Type:    recordType,
		Chassis: rack.AuditChassis{NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber},
		Tenant:  lease.Namespace,
		Lease:   &rack.AuditReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID},
	}
}

func ofInstance(recordType rack.AuditRecordType, i *instance.MacOSInstance, lease *rack.MacNodeLease) *rack.AuditRecord {
	record := &rack.AuditRecord{
		Type:     recordType,
		Chassis:  rack.AuditChassis{NodeName: i.Status.NodeName, SerialNumber: i.Status.SerialNumber},
		Tenant:   i.Namespace,
		Lease:    &rack.AuditReference{Namespace: i.Namespace, Name: i.Spec.LeaseName},
		Instance: &rack.AuditReference{Namespace: i.Namespace, Name: i.Name, UID: i.UID},
	}
	if lease != nil {
		record.Lease.UID = lease.UID
		if record.Chassis.SerialNumber == "" {
			record.Chassis = rack.AuditChassis{NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber}
		}
	}
	if record.Lease.Name == "" {
		record.Lease = nil
	}
	return record
}

func ofNode(recordType rack.AuditRecordType, node *rack.MacNode, reason, message string) *rack.AuditRecord {
	record := &rack.AuditRecord{
		Type:    recordType,
		Chassis: chassisOf(node),
		Details: rack.AuditDetails{Reason: reason, Message: message},
	}
	if ref := node.Status.LeaseRef; ref != nil {
		record.Tenant = ref.Namespace
		record.Lease = &rack.AuditReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	}
	return record
}

func chassisOf(node *rack.MacNode) rack.AuditChassis {
	return rack.AuditChassis{NodeName: node.Name, SerialNumber: node.Spec.SerialNumber}
}

func seconds(t time.Time) *metav1.Time {
	s := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &s
}
