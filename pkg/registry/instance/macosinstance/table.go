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
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Lease", "Lease that the instance runs in."),
	tableconvertor.Column("Image", "MacOSImage that the instance starts from."),
	tableconvertor.Column("Class", "InstanceClass of the instance."),
	tableconvertor.Column("Phase", "Pending, Scheduled, Pulling, Starting, Running, Stopping, Stopped or Failed."),
	tableconvertor.Column("IP", "IP address of the running virtual machine."),
	tableconvertor.AgeColumn(),
	tableconvertor.Wide(tableconvertor.Column("Node", "MacNode that the instance runs on.")),
	tableconvertor.Wide(tableconvertor.Column("Serial", "Serial number of the Mac.")),
	tableconvertor.Wide(tableconvertor.Column("MAC", "MAC address of the virtual machine.")),
	tableconvertor.Wide(tableconvertor.Column("Machine-ID", "Machine identifier of the virtual machine.")),
	tableconvertor.Wide(tableconvertor.Column("Message", "Cause for which the instance is not Ready.")),
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
	return tableconvertor.New(columns, func(i *instance.MacOSInstance) []any {
		var ip instance.IPAddress
		if i.Status.IPAddress != nil {
			ip = *i.Status.IPAddress
		}
		return []any{
			i.Name,
			tableconvertor.Text(i.Spec.LeaseName),
			tableconvertor.Text(i.Spec.ImageName),
			tableconvertor.Text(i.Spec.ClassName),
			tableconvertor.Text(string(i.Status.Phase)),
			tableconvertor.Text(ip.Value),
			tableconvertor.Age(clock, i.CreationTimestamp),
			tableconvertor.Text(i.Status.NodeName),
			tableconvertor.Text(i.Status.SerialNumber),
			tableconvertor.Text(i.Status.MACAddress),
			tableconvertor.Text(i.Status.MachineID),
			tableconvertor.Text(genericstrategy.Cut(message(i), maxMessage)),
		}
	})
}
