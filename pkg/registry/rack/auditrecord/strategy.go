// Package auditrecord stores AuditRecords.
package auditrecord

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/strategies"
)

// Strategy says what of an AuditRecord a client may write: only the account of a rejection by its own layer.
// There is no update: records never change.
type Strategy struct {
	strategies.Base
}

// NewStrategy returns the strategy of AuditRecords.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{strategies.NewBase(typer)}
}

// NamespaceScoped is true: an AuditRecord is in its tenant's namespace.
func (Strategy) NamespaceScoped() bool { return true }

// PrepareForCreate drops what only the server knows: the name and the place in the chain, when, and who. The
// tenant is the namespace, or if that reached for another's Mac, the Mac's tenant. What was found on a thing that was refused may be anything, and is cut to size.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	auditRecord := obj.(*rack.AuditRecord)
	auditRecord.ObjectMeta = metav1.ObjectMeta{Namespace: auditRecord.Namespace}
	auditRecord.Time = metav1.MicroTime{}
	auditRecord.Actor = rack.AuditActor{}
	auditRecord.RequestID, auditRecord.ClaimedRequestID = "", ""
	auditRecord.Tenant = auditRecord.Namespace
	if auditRecord.Type == rack.CrossTenantRejected && auditRecord.Lease != nil {
		auditRecord.Tenant = auditRecord.Lease.Namespace
	}
	auditRecord.Sequence = 0
	auditRecord.PreviousHash = ""
	auditRecord.Hash = ""
	auditRecord.Details.Count = 0
	auditRecord.Details.Message = strategies.Cut(auditRecord.Details.Message, validation.MaxAuditMessage)
	for _, ref := range []*rack.AuditReference{auditRecord.Lease, auditRecord.Instance} {
		if ref != nil {
			ref.Namespace = strategies.Cut(ref.Namespace, validation.MaxAuditReference)
			ref.Name = strategies.Cut(ref.Name, validation.MaxAuditReference)
			ref.UID = types.UID(strategies.Cut(string(ref.UID), validation.MaxAuditReference))
		}
	}
}

// Validate says what is wrong with a new AuditRecord.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateAuditRecord(obj.(*rack.AuditRecord))
}

// SelectableFields returns the fields by which AuditRecords can be selected.
func SelectableFields(auditRecord *rack.AuditRecord) fields.Set {
	set := generic.ObjectMetaFieldsSet(&auditRecord.ObjectMeta, true)
	set["type"] = string(auditRecord.Type)
	set["tenant"] = auditRecord.Tenant
	set["chassis.serialNumber"] = auditRecord.Chassis.SerialNumber
	return set
}

// GetAttrs returns the labels and the fields by which an AuditRecord can be selected.
var GetAttrs = strategies.Attrs(SelectableFields)
