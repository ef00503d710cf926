package rackconfig

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("Retention", "Retention period of audit records."),
	tableconvertor.Column("Heartbeat", "Interval of agent heartbeats: that of the fleet, or the configured one."),
	tableconvertor.Column("Offline-After", "Time without a heartbeat after which a Mac is Offline."),
	tableconvertor.Column("Default-Class", "MacNodeClass of leases without a class."),
	tableconvertor.AgeColumn(),
	tableconvertor.Wide(tableconvertor.Column("Minimum-Free", "Disk space kept free on each Mac.")),
	tableconvertor.Wide(tableconvertor.Column("Reboot", "Policy for rebooting quarantined Macs.")),
}

// NewTableConvertor returns the table convertor of RackConfigs.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(c *config.RackConfig) []any {
		minimumFree := tableconvertor.None
		if c.Spec.ImageCache.MinimumFree != nil {
			minimumFree = c.Spec.ImageCache.MinimumFree.String()
		}
		return []any{
			c.Name,
			tableconvertor.Duration(c.Spec.Audit.Retention),
			tableconvertor.Duration(cmp.Or(c.Status.HeartbeatInterval, c.Spec.Agent.HeartbeatInterval)),
			tableconvertor.Duration(c.Spec.Agent.OfflineAfter),
			tableconvertor.Text(c.Spec.DefaultClassName),
			tableconvertor.Age(clock, c.CreationTimestamp),
			minimumFree,
			tableconvertor.Text(string(c.Spec.Quarantine.Reboot)),
		}
	})
}
