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
	tables.Column("Class", "MacNodeClass that was asked for."),
	tables.Column("Serial", "Serial number of the Mac; of the one that was asked for, while the lease is pending."),
	tables.Column("Phase", "Pending, Bound, Held, Releasing or Released. Held means: deleted before the floor."),
	tables.Column("VMs", "Slots that are taken, of those that there are."),
	tables.Column("Bound-At", "When the Mac became the tenant's."),
	tables.Column("Release-At", "The floor: the Mac is the tenant's, and billed, until then at least."),
	tables.Column("Remaining", "How long it is until the floor."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Node", "MacNode of the lease.")),
}

// NewTableConvertor returns what prints MacNodeLeases.
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
