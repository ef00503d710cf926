package auditrecord

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Time", "When it happened."),
	tables.Column("Type", "What happened."),
	tables.Column("Serial", "Serial number of the chassis."),
	tables.Column("Lease", "Lease that it happened to."),
	tables.Column("Instance", "Instance that it happened to."),
	tables.Column("Actor", "Who asked for it."),
	tables.Wide(tables.Column("Node", "MacNode of the chassis.")),
	tables.Wide(tables.Number("Sequence", "Place in the chassis' chain of records.")),
	tables.Wide(tables.Column("Reason", "Why.")),
}

// NewTableConvertor returns what prints AuditRecords.
func NewTableConvertor(clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(r *rack.AuditRecord) []any {
		at := tables.Unknown
		if !r.Time.IsZero() {
			at = r.Time.UTC().Format(time.RFC3339)
		}
		return []any{
			r.Name,
			at,
			tables.Text(string(r.Type)),
			tables.Text(r.Chassis.SerialNumber),
			reference(r.Lease),
			reference(r.Instance),
			tables.Text(r.Actor.Username),
			tables.Text(r.Chassis.NodeName),
			r.Sequence,
			tables.Text(r.Details.Reason),
		}
	})
}

func reference(r *rack.AuditReference) string {
	if r == nil {
		return tables.None
	}
	return tables.Text(r.Name)
}
