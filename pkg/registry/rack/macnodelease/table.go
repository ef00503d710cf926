package macnodelease

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tables"
	"macrack.io/macrack/pkg/rules"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Class", "MacNodeClass of the lease."),
	tables.Column("Serial", "Serial number of the Mac; the requested one while the lease is Pending."),
	tables.Column("Phase", "Pending, Bound, Held (deleted before the floor), Releasing or Released."),
	tables.Column("VMs", "Taken slots, of the maximum."),
	tables.Column("Bound-At", "Time at which the lease was bound."),
	tables.Column("Release-At", "Floor: the lease keeps its Mac, and is billed, at least until then."),
	tables.Column("Remaining", "Time until the floor."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Node", "MacNode of the lease.")),
}

// NewTableConvertor returns the table convertor of MacNodeLeases.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(l *rack.MacNodeLease) []any {
		serial := l.Status.SerialNumber
		if serial == "" {
			serial = l.Spec.SerialNumber
		}
		return []any{
			l.Name,
			tables.Text(l.Spec.ClassName),
			tables.Text(serial),
			tables.Text(string(l.Status.Phase)),
			fmt.Sprintf("%d/%d", len(l.Status.Instances), rules.MaxVMsPerMac),
			tables.Time(l.Status.BoundAt),
			tables.Time(l.Status.EarliestReleaseAt),
			tables.Remaining(clock, l.Status.EarliestReleaseAt),
			tables.Age(clock, l.CreationTimestamp),
			tables.Text(l.Status.NodeName),
		}
	})
}
