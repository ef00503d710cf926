package macnodeclass

import (
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
			tableconvertor.Age(clock, c.CreationTimestamp),
			tableconvertor.Text(c.Spec.Model),
			tableconvertor.Text(c.Spec.SKU),
		}
	})
}
