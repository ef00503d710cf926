package macnodeclass

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Chip", "The processor."),
	tables.Column("CPU", "Processor cores of one Mac."),
	tables.Column("Memory", "Main memory of one Mac."),
	tables.Column("Storage", "Disk of one Mac."),
	tables.Number("Total", "Macs of the class."),
	tables.Number("Available", "Macs that a lease can be bound to."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Model", "The model.")),
	tables.Wide(tables.Column("SKU", "Billing SKU of one Mac for 24 hours.")),
}

// NewTableConvertor returns the table convertor of MacNodeClasses.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(c *rack.MacNodeClass) []any {
		return []any{
			c.Name,
			tables.Text(c.Spec.Chip),
			tables.Quantity(c.Spec.Capacity.CPU),
			tables.Quantity(c.Spec.Capacity.Memory),
			tables.Quantity(c.Spec.Capacity.Storage),
			int64(c.Status.Total),
			int64(c.Status.Available),
			tables.Age(clock, c.CreationTimestamp),
			tables.Text(c.Spec.Model),
			tables.Text(c.Spec.SKU),
		}
	})
}
