// Package rejections records the agent's rejections in the ledger.
package rejections

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/objects"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// Reasons of rejections.
const (
	// ReasonForeignPod: the pod is not the placeholder of an instance of this Mac's lease.
	ReasonForeignPod = "ForeignPod"
	// ReasonUnknownInstance: a virtual machine on the Mac belongs to no instance of the API.
	ReasonUnknownInstance = rackv1alpha1.ReasonUnknownInstance
	// ReasonDuplicateIdentity: another virtual machine on the Mac has the same identity.
	ReasonDuplicateIdentity = "DuplicateIdentity"
	// ReasonForeignIdentity: a virtual machine does not have the identity of its instance.
	ReasonForeignIdentity = "ForeignIdentity"
	// ReasonGarbledSlot: the files of a slot cannot be read.
	ReasonGarbledSlot = "GarbledSlot"
	// ReasonInstanceGone: the instance was removed while its virtual machine ran.
	ReasonInstanceGone = "InstanceGone"
	// ReasonSlotsFull: the pod's virtual machine would exceed the limit.
	ReasonSlotsFull = "SlotsFull"
)

// Recorder writes rejections to the ledger.
type Recorder struct {
	client  versioned.Interface
	macNode *objects.MacNode
}

// NewRecorder returns a recorder of this Mac's rejections.
func NewRecorder(client versioned.Interface, macNode *objects.MacNode) *Recorder {
	return &Recorder{client, macNode}
}

// Record writes a rejection to the ledger. A failure of the ledger does not revert the rejection:
// it is recorded later if the error IsTransient.
func (r *Recorder) Record(ctx context.Context, layer rackv1alpha1.AuditLayer, namespace string, instance *rackv1alpha1.AuditReference, reason, message string) error {
	return r.Create(ctx, r.Rejection(layer, namespace, instance, reason, message))
}

// Rejection returns the record of a rejection: CrossTenantRejected if the Mac is leased to another
// tenant.
func (r *Recorder) Rejection(layer rackv1alpha1.AuditLayer, namespace string, instance *rackv1alpha1.AuditReference, reason, message string) *rackv1alpha1.AuditRecord {
	record := &rackv1alpha1.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "rejection-"},
		Type:       rackv1alpha1.InstanceRejected,
		Chassis:    rackv1alpha1.AuditChassis{NodeName: r.macNode.Name},
		Tenant:     namespace,
		Instance:   instance,
		Details:    rackv1alpha1.AuditDetails{Layer: layer, Reason: reason, Message: message},
	}
	if macNode, err := r.macNode.Cached(); err == nil {
		record.Chassis.SerialNumber = macNode.Spec.SerialNumber
		if lease := macNode.Status.LeaseRef; lease != nil {
			record.Lease = &rackv1alpha1.AuditReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
			if lease.Namespace != namespace {
				record.Type, record.Details.SourceNamespace = rackv1alpha1.CrossTenantRejected, namespace
			}
		}
	}
	return record
}

// Create writes a record to the ledger.
func (r *Recorder) Create(ctx context.Context, record *rackv1alpha1.AuditRecord) error {
	_, err := r.client.RackV1alpha1().AuditRecords(record.Namespace).Create(ctx, record, metav1.CreateOptions{})
	if err != nil {
		klog.ErrorS(err, "Failed to record rejection", "namespace", record.Namespace, "reason", record.Details.Reason, "message", record.Details.Message)
	}
	return err
}

// IsTransient reports whether a retry may succeed.
func IsTransient(err error) bool {
	return err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsNotFound(err)
}

// Reference refers to an instance in a record.
func Reference(instance *instancev1alpha1.MacOSInstance) *rackv1alpha1.AuditReference {
	return &rackv1alpha1.AuditReference{Namespace: instance.Namespace, Name: instance.Name, UID: instance.UID}
}
