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
	tables.Column("Time", "Time of the event."),
	tables.Column("Type", "What happened."),
	tables.Column("Serial", "Serial number of the chassis."),
	tables.Column("Lease", "Lease that the event is about."),
	tables.Column("Instance", "Instance that the event is about."),
	tables.Column("Actor", "User who made the request."),
	tables.Wide(tables.Column("Node", "MacNode of the chassis.")),
	tables.Wide(tables.Number("Sequence", "Sequence number in the chain of the chassis.")),
	tables.Wide(tables.Column("Reason", "Why.")),
}

// NewTableConvertor returns the table convertor of AuditRecords.
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
