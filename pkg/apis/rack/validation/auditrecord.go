package validation

import (
	"fmt"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/rack"
)

const (
	// MaxAuditMessage is the maximum number of bytes of the message of a record.
	MaxAuditMessage = 4096
	// MaxAuditReference is the maximum number of bytes of a namespace, a name or a UID in a record.
	MaxAuditReference = 253
)

// ValidateAuditRecord returns the errors in an AuditRecord that a client creates to report a
// rejection by its own layer. The server records all other events in the transaction of the change,
// and it names the record. The references need not exist or be valid names, because the refused
// client may have made them up.
func ValidateAuditRecord(record *rack.AuditRecord) field.ErrorList {
	if errs := check.Label(record.Namespace, field.NewPath("metadata", "namespace")); len(errs) > 0 {
		return errs
	}
	errs := check.Enum(record.Type, field.NewPath("type"), rack.InstanceRejected, rack.CrossTenantRejected)

	chassis := field.NewPath("chassis")
	errs = append(errs, check.Name(record.Chassis.NodeName, chassis.Child("nodeName"))...)
	if record.Chassis.SerialNumber != "" {
		errs = append(errs, check.SerialNumber(record.Chassis.SerialNumber, chassis.Child("serialNumber"))...)
	}
	tenant := record.Namespace
	if record.Type == rack.CrossTenantRejected && record.Lease != nil {
		tenant = record.Lease.Namespace
	}
	if record.Tenant != tenant {
		errs = append(errs, field.Invalid(field.NewPath("tenant"), record.Tenant, fmt.Sprintf("must be %q", tenant)))
	}
	if record.Lease != nil {
		errs = append(errs, validateAuditReference(record.Lease, field.NewPath("lease"))...)
	}
	if record.Instance != nil {
		errs = append(errs, validateAuditReference(record.Instance, field.NewPath("instance"))...)
	}
	return append(errs, validateRejection(record.Type, &record.Details, field.NewPath("details"))...)
}

func validateAuditReference(ref *rack.AuditReference, path *field.Path) field.ErrorList {
	errs := check.Lines(ref.Namespace, MaxAuditReference, path.Child("namespace"))
	errs = append(errs, check.Lines(ref.Name, MaxAuditReference, path.Child("name"))...)
	return append(errs, check.Lines(string(ref.UID), MaxAuditReference, path.Child("uid"))...)
}

func validateRejection(recordType rack.AuditRecordType, details *rack.AuditDetails, path *field.Path) field.ErrorList {
	errs := check.Enum(details.Layer, path.Child("layer"), rack.LayerScheduler, rack.LayerAgent, rack.LayerKernel)
	reason := path.Child("reason")
	if details.Reason == "" {
		errs = append(errs, field.Required(reason, ""))
	} else if tooLong := check.Text(details.Reason, 256, reason); len(tooLong) > 0 {
		errs = append(errs, tooLong...)
	} else {
		for _, msg := range metav1validation.IsValidConditionReason(details.Reason) {
			errs = append(errs, field.Invalid(reason, details.Reason, msg))
		}
	}
	errs = append(errs, check.Lines(details.Message, MaxAuditMessage, path.Child("message"))...)
	switch {
	case details.SourceNamespace != "":
		errs = append(errs, check.Label(details.SourceNamespace, path.Child("sourceNamespace"))...)
	case recordType == rack.CrossTenantRejected:
		errs = append(errs, field.Required(path.Child("sourceNamespace"), "the namespace that reached for the Mac"))
	}

	for _, detail := range []struct {
		name string
		set  bool
	}{
		{"boundAt", details.BoundAt != nil},
		{"earliestReleaseAt", details.EarliestReleaseAt != nil},
		{"attemptedAt", details.AttemptedAt != nil},
		{"remaining", details.Remaining != nil},
		{"releasedAt", details.ReleasedAt != nil},
		{"duration", details.Duration != nil},
		{"nodeTaints", len(details.NodeTaints) > 0},
		{"localVMs", details.LocalVMs != nil},
		{"machineID", details.MachineID != ""},
		{"macAddress", details.MACAddress != ""},
		{"previousEarliestReleaseAt", details.PreviousEarliestReleaseAt != nil},
		{"requestedBy", details.RequestedBy != nil},
		{"className", details.ClassName != ""},
		{"sku", details.SKU != ""},
		{"witnessedSequence", details.WitnessedSequence != 0},
		{"witnessedHash", details.WitnessedHash != ""},
		{"startGrantedAt", details.StartGrantedAt != nil},
		{"lostAfter", details.LostAfter != nil},
	} {
		if detail.set {
			errs = append(errs, field.Forbidden(path.Child(detail.name), "only the server sets this field"))
		}
	}
	return errs
}
