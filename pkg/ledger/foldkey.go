package ledger

import (
	"cmp"
	"strings"

	"macrack.io/macrack/pkg/apis/rack"
)

// A cause has the properties that rejections share apart from their objects.
type cause struct {
	recordType    rack.AuditRecordType
	chassis       rack.AuditChassis
	actor, tenant string
	source        string
	layer         rack.AuditLayer
	reason        string
	field         string // of a tampering attempt
}

// A foldKey has the properties that identical rejections share. Objects beyond maxObjects have
// empty names.
type foldKey struct {
	cause
	lease, instance string
	overflow        bool // Identical in type and reason only: beyond maxSeparate.
}

// An account is the subject of maxSeparate: the namespace of the refused client. The reports of an
// agent are on the account of its Mac, regardless of the namespaces in them. Otherwise an agent
// could cause the rejections of a tenant to be folded.
type account struct{ namespace, mac string }

func keyOf(record *rack.AuditRecord) foldKey {
	return foldKey{
		cause: cause{
			recordType: record.Type,
			chassis:    record.Chassis,
			actor:      record.Actor.Username,
			tenant:     record.Tenant,
			source:     record.Details.SourceNamespace,
			layer:      record.Details.Layer,
			reason:     record.Details.Reason,
			field:      fieldOf(record),
		},
		lease:    nameOf(record.Lease),
		instance: nameOf(record.Instance),
	}
}

// overflowOf returns the key of a rejection that is folded with all rejections of its account with
// the same reason and tenant.
func overflowOf(record *rack.AuditRecord) foldKey {
	key := foldKey{overflow: true, cause: cause{
		recordType: record.Type,
		tenant:     record.Tenant,
		source:     record.Details.SourceNamespace,
		layer:      record.Details.Layer,
		reason:     record.Details.Reason,
	}}
	if accountOf(record).mac != "" {
		key.chassis = record.Chassis
	}
	return key
}

func accountOf(record *rack.AuditRecord) account {
	switch record.Details.Layer {
	case rack.LayerAgent, rack.LayerKernel:
		return account{mac: record.Chassis.NodeName}
	}
	return account{namespace: cmp.Or(record.Details.SourceNamespace, record.Tenant)}
}

func (a account) String() string {
	if a.mac != "" {
		return "Mac " + a.mac
	}
	return "namespace " + a.namespace
}

// fieldOf returns the field at the start of the message of a tampering attempt, if any.
func fieldOf(record *rack.AuditRecord) string {
	if record.Type != rack.FloorTamperRejected {
		return ""
	}
	if field, _, ok := strings.Cut(record.Details.Message, ": "); ok && !strings.ContainsAny(field, " \n") {
		return field
	}
	return ""
}

func nameOf(r *rack.AuditReference) string {
	if r == nil {
		return ""
	}
	return r.Namespace + "/" + r.Name
}
