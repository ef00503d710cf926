package instanceclass

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("CPU", "Processor cores."),
	tableconvertor.Column("Memory", "Main memory."),
	tableconvertor.Column("Storage", "Disk."),
	tableconvertor.AgeColumn(),
}

// NewTableConvertor returns the table convertor of InstanceClasses.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(c *instance.InstanceClass) []any {
		return []any{
			c.Name,
			tableconvertor.Quantity(c.Spec.Resources.CPU),
			tableconvertor.Quantity(c.Spec.Resources.Memory),
			tableconvertor.Quantity(c.Spec.Resources.Storage),
			tableconvertor.Age(clock, c.CreationTimestamp),
		}
	})
}
