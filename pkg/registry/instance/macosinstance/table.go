package macosinstance

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/registry/genericstrategy"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Lease", "Lease that the instance runs in."),
	tables.Column("Image", "MacOSImage that the instance starts from."),
	tables.Column("Class", "InstanceClass of the instance."),
	tables.Column("Phase", "Pending, Scheduled, Pulling, Starting, Running, Stopping, Stopped or Failed."),
	tables.Column("IP", "IP address of the running virtual machine."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Node", "MacNode that the instance runs on.")),
	tables.Wide(tables.Column("Serial", "Serial number of the Mac.")),
	tables.Wide(tables.Column("MAC", "MAC address of the virtual machine.")),
	tables.Wide(tables.Column("Machine-ID", "Machine identifier of the virtual machine.")),
	tables.Wide(tables.Column("Message", "Cause for which the instance is not Ready.")),
}

// maxMessage is the maximum number of bytes of a message in a table.
const maxMessage = 200

// message returns the cause for which an instance is not Ready, on one line.
func message(i *instance.MacOSInstance) string {
	text := i.Status.Message
	if ready := meta.FindStatusCondition(i.Status.Conditions, conditions.Ready); ready != nil && ready.Status != metav1.ConditionTrue {
		text = ready.Message
	}
	return strings.Join(strings.Fields(text), " ")
}

// NewTableConvertor returns the table convertor of MacOSInstances.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(i *instance.MacOSInstance) []any {
		var ip instance.IPAddress
		if i.Status.IPAddress != nil {
			ip = *i.Status.IPAddress
		}
		return []any{
			i.Name,
			tables.Text(i.Spec.LeaseName),
			tables.Text(i.Spec.ImageName),
			tables.Text(i.Spec.ClassName),
			tables.Text(string(i.Status.Phase)),
			tables.Text(ip.Value),
			tables.Age(clock, i.CreationTimestamp),
			tables.Text(i.Status.NodeName),
			tables.Text(i.Status.SerialNumber),
			tables.Text(i.Status.MACAddress),
			tables.Text(i.Status.MachineID),
			tables.Text(genericstrategy.Cut(message(i), maxMessage)),
		}
	})
}
