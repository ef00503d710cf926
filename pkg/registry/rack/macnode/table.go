package macnode

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tables"
	"macrack.io/macrack/pkg/rules"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Serial", "Serial number of the chassis."),
	tables.Column("Class", "MacNodeClass of the Mac."),
	tables.Column("Phase", "Pending, Available, Leased, Releasing, Offline, Maintenance or Quarantined."),
	tables.Column("Tenant", "Namespace that the Mac is leased to."),
	tables.Column("Lease", "Lease of the Mac."),
	tables.Column("VMs", "Running virtual machines, of the maximum."),
	tables.Column("Release-At", "Floor of the lease."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Location", "Site, rack and shelf.")),
	tables.Wide(tables.Column("macOS", "Version of macOS on the host.")),
	tables.Wide(tables.Column("Agent", "Version of the agent.")),
	tables.Wide(tables.Column("Free", "Free space on the disk.")),
}

// NewTableConvertor returns the table convertor of MacNodes.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(n *rack.MacNode) []any {
		var lease rack.LeaseReference
		if n.Status.LeaseRef != nil {
			lease = *n.Status.LeaseRef
		}
		var hardware rack.MacNodeHardware
		if n.Status.Hardware != nil {
			hardware = *n.Status.Hardware
		}
		return []any{
			n.Name,
			tables.Text(n.Spec.SerialNumber),
			tables.Text(n.Spec.ClassName),
			tables.Text(string(n.Status.Phase)),
			tables.Text(lease.Namespace),
			tables.Text(lease.Name),
			fmt.Sprintf("%d/%d", n.Status.RunningVMs, rules.MaxVMsPerMac),
			tables.Time(n.Status.EarliestReleaseAt),
			tables.Age(clock, n.CreationTimestamp),
			tables.Text(location(n.Spec.Location)),
			tables.Text(hardware.MacOSVersion),
			tables.Text(hardware.AgentVersion),
			tables.Bytes(hardware.FreeStorage.Int64()),
		}
	})
}

// location returns the location as site/rack/shelf, without unknown parts at the end.
func location(l rack.MacNodeLocation) string {
	return strings.TrimRight(l.Site+"/"+l.Rack+"/"+l.Shelf, "/")
}
