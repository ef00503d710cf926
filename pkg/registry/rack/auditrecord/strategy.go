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
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating AuditRecords. A client may only report a rejection by its
// own layer. Records are never updated.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of AuditRecords.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is true: an AuditRecord is in its tenant's namespace.
func (Strategy) NamespaceScoped() bool { return true }

// PrepareForCreate drops the fields that only the server sets: the name, the place in the chain,
// the time and the actor. The tenant is the namespace, or for a cross-tenant rejection the tenant
// of the Mac. Texts from the refused object are untrusted and are cut to the limits.
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
	auditRecord.Details.Message = genericstrategy.Cut(auditRecord.Details.Message, validation.MaxAuditMessage)
	for _, ref := range []*rack.AuditReference{auditRecord.Lease, auditRecord.Instance} {
		if ref != nil {
			ref.Namespace = genericstrategy.Cut(ref.Namespace, validation.MaxAuditReference)
			ref.Name = genericstrategy.Cut(ref.Name, validation.MaxAuditReference)
			ref.UID = types.UID(genericstrategy.Cut(string(ref.UID), validation.MaxAuditReference))
		}
	}
}

// Validate returns the errors in a new AuditRecord.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateAuditRecord(obj.(*rack.AuditRecord))
}

// SelectableFields returns the fields that field selectors of AuditRecords can use.
func SelectableFields(auditRecord *rack.AuditRecord) fields.Set {
	set := generic.ObjectMetaFieldsSet(&auditRecord.ObjectMeta, true)
	set["type"] = string(auditRecord.Type)
	set["tenant"] = auditRecord.Tenant
	set["chassis.serialNumber"] = auditRecord.Chassis.SerialNumber
	return set
}

// GetAttrs returns the labels of an AuditRecord and the fields that selectors of clients and of the
// server can use.
var GetAttrs = genericstrategy.Attrs(attributes)
