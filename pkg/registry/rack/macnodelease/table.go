package macnodelease

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
	"macrack.io/macrack/pkg/rules"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Class", "MacNodeClass of the lease."),
	tableconvertor.Column("Serial", "Serial number of the Mac; the requested one while the lease is Pending."),
	tableconvertor.Column("Phase", "Pending, Bound, Held (deleted before the floor), Releasing or Released."),
	tableconvertor.Column("VMs", "Taken slots, of the maximum."),
	tableconvertor.Column("Bound-At", "Time at which the lease was bound."),
	tableconvertor.Column("Release-At", "Floor: the lease keeps its Mac, and is billed, at least until then."),
	tableconvertor.Column("Remaining", "Time until the floor."),
	tableconvertor.AgeColumn(),
	tableconvertor.Wide(tableconvertor.Column("Node", "MacNode of the lease.")),
}

// NewTableConvertor returns the table convertor of MacNodeLeases.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(l *rack.MacNodeLease) []any {
		serial := l.Status.SerialNumber
		if serial == "" {
			serial = l.Spec.SerialNumber
		}
		return []any{
			l.Name,
			tableconvertor.Text(l.Spec.ClassName),
			tableconvertor.Text(serial),
			tableconvertor.Text(string(l.Status.Phase)),
			fmt.Sprintf("%d/%d", len(l.Status.Instances), rules.MaxVMsPerMac),
			tableconvertor.Time(l.Status.BoundAt),
			tableconvertor.Time(l.Status.EarliestReleaseAt),
			tableconvertor.Remaining(clock, l.Status.EarliestReleaseAt),
			tableconvertor.Age(clock, l.CreationTimestamp),
			tableconvertor.Text(l.Status.NodeName),
		}
	})
}
