package rackconfig

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("Retention", "Retention period of audit records."),
	tables.Column("Heartbeat", "Interval of agent heartbeats."),
	tables.Column("Offline-After", "Time without a heartbeat after which a Mac is Offline."),
	tables.Column("Default-Class", "MacNodeClass of leases without a class."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Minimum-Free", "Disk space kept free on each Mac.")),
	tables.Wide(tables.Column("Reboot", "Policy for rebooting quarantined Macs.")),
}

// NewTableConvertor returns the table convertor of RackConfigs.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(c *config.RackConfig) []any {
		minimumFree := tables.None
		if c.Spec.ImageCache.MinimumFree != nil {
			minimumFree = c.Spec.ImageCache.MinimumFree.String()
		}
		return []any{
			c.Name,
			tables.Duration(c.Spec.Audit.Retention),
			tables.Duration(c.Spec.Agent.HeartbeatInterval),
			tables.Duration(c.Spec.Agent.OfflineAfter),
			tables.Text(c.Spec.DefaultClassName),
			tables.Age(clock, c.CreationTimestamp),
			minimumFree,
			tables.Text(string(c.Spec.Quarantine.Reboot)),
		}
	})
}
