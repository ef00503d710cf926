package macnode

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
	"macrack.io/macrack/pkg/rules"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Serial", "Serial number of the chassis."),
	tableconvertor.Column("Class", "MacNodeClass of the Mac."),
	tableconvertor.Column("Phase", "Pending, Available, Leased, Releasing, Offline, Maintenance or Quarantined."),
	tableconvertor.Column("Tenant", "Namespace that the Mac is leased to."),
	tableconvertor.Column("Lease", "Lease of the Mac."),
	tableconvertor.Column("VMs", "Running virtual machines, of the maximum."),
	tableconvertor.Column("Release-At", "Floor of the lease."),
	tableconvertor.AgeColumn(),
	tableconvertor.Wide(tableconvertor.Column("Location", "Site, rack and shelf.")),
	tableconvertor.Wide(tableconvertor.Column("macOS", "Version of macOS on the host.")),
	tableconvertor.Wide(tableconvertor.Column("Agent", "Version of the agent.")),
	tableconvertor.Wide(tableconvertor.Column("Free", "Free space on the disk.")),
}

// NewTableConvertor returns the table convertor of MacNodes.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(n *rack.MacNode) []any {
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
			tableconvertor.Text(n.Spec.SerialNumber),
			tableconvertor.Text(n.Spec.ClassName),
			tableconvertor.Text(string(n.Status.Phase)),
			tableconvertor.Text(lease.Namespace),
			tableconvertor.Text(lease.Name),
			fmt.Sprintf("%d/%d", n.Status.RunningVMs, rules.MaxVMsPerMac),
			tableconvertor.Time(n.Status.EarliestReleaseAt),
			tableconvertor.Age(clock, n.CreationTimestamp),
			tableconvertor.Text(location(n.Spec.Location)),
			tableconvertor.Text(hardware.MacOSVersion),
			tableconvertor.Text(hardware.AgentVersion),
			tableconvertor.Bytes(hardware.FreeStorage.Int64()),
		}
	})
}

// location returns the location as site/rack/shelf, without unknown parts at the end.
func location(l rack.MacNodeLocation) string {
	return strings.TrimRight(l.Site+"/"+l.Rack+"/"+l.Shelf, "/")
}
