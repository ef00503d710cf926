package instanceclass

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("CPU", "Processor cores."),
	tables.Column("Memory", "Main memory."),
	tables.Column("Storage", "Disk."),
	tables.AgeColumn(),
}

// NewTableConvertor returns the table convertor of InstanceClasses.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(c *instance.InstanceClass) []any {
		return []any{
			c.Name,
			tables.Quantity(c.Spec.Resources.CPU),
			tables.Quantity(c.Spec.Resources.Memory),
			tables.Quantity(c.Spec.Resources.Storage),
			tables.Age(clock, c.CreationTimestamp),
		}
	})
}
