package macnodeclass

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Chip", "The processor."),
	tableconvertor.Column("CPU", "Processor cores of one Mac."),
	tableconvertor.Column("Memory", "Main memory of one Mac."),
	tableconvertor.Column("Storage", "Disk of one Mac."),
	tableconvertor.Number("Total", "Macs of the class."),
	tableconvertor.Number("Available", "Macs that a lease can be bound to."),
	tableconvertor.Number("Leased", "Leased Macs, not including those of Held leases."),
	tableconvertor.Number("Held", "Macs whose lease is Held or Releasing."),
	tableconvertor.Column("Utilisation", "Macs that belong to a lease, divided by all Macs."),
	tableconvertor.AgeColumn(),
	tableconvertor.Wide(tableconvertor.Column("Model", "The model.")),
	tableconvertor.Wide(tableconvertor.Column("SKU", "Billing SKU of one Mac for 24 hours.")),
}

// NewTableConvertor returns the table convertor of MacNodeClasses.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(c *rack.MacNodeClass) []any {
		return []any{
			c.Name,
			tableconvertor.Text(c.Spec.Chip),
			tableconvertor.Quantity(c.Spec.Capacity.CPU),
			tableconvertor.Quantity(c.Spec.Capacity.Memory),
			tableconvertor.Quantity(c.Spec.Capacity.Storage),
			int64(c.Status.Total),
			int64(c.Status.Available),
			int64(c.Status.Leased),
			int64(c.Status.Held),
			utilisation(c.Status),
			tableconvertor.Age(clock, c.CreationTimestamp),
			tableconvertor.Text(c.Spec.Model),
			tableconvertor.Text(c.Spec.SKU),
		}
	})
}

// utilisation returns the percentage of the Macs that belong to a lease. It is rounded down, so
// that 100% means all Macs.
func utilisation(status rack.MacNodeClassStatus) string {
	if status.Total == 0 {
		return tableconvertor.None
	}
	return fmt.Sprintf("%d%%", 100*int64(status.Occupied)/int64(status.Total))
}
