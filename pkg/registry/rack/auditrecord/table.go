package auditrecord

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Time", "Time of the event."),
	tableconvertor.Column("Type", "What happened."),
	tableconvertor.Column("Serial", "Serial number of the chassis."),
	tableconvertor.Column("Lease", "Lease that the event is about."),
	tableconvertor.Column("Instance", "Instance that the event is about."),
	tableconvertor.Column("Actor", "User who made the request."),
	tableconvertor.Wide(tableconvertor.Column("Node", "MacNode of the chassis.")),
	tableconvertor.Wide(tableconvertor.Number("Sequence", "Sequence number in the chain of the chassis.")),
	tableconvertor.Wide(tableconvertor.Column("Reason", "Why.")),
}

// NewTableConvertor returns the table convertor of AuditRecords.
func NewTableConvertor(clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(r *rack.AuditRecord) []any {
		at := tableconvertor.Unknown
		if !r.Time.IsZero() {
			at = r.Time.UTC().Format(time.RFC3339)
		}
		return []any{
			r.Name,
			at,
			tableconvertor.Text(string(r.Type)),
			tableconvertor.Text(r.Chassis.SerialNumber),
			reference(r.Lease),
			reference(r.Instance),
			tableconvertor.Text(r.Actor.Username),
			tableconvertor.Text(r.Chassis.NodeName),
			r.Sequence,
			tableconvertor.Text(r.Details.Reason),
		}
	})
}

func reference(r *rack.AuditReference) string {
	if r == nil {
		return tableconvertor.None
	}
	return tableconvertor.Text(r.Name)
}
