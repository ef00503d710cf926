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
	tables.Column("Retention", "How long records are kept."),
	tables.Column("Heartbeat", "How often an agent is heard of."),
	tables.Column("Offline-After", "How long an agent may be silent."),
	tables.Column("Default-Class", "MacNodeClass of leases that name none."),
	tables.AgeColumn(),
	tables.Wide(tables.Column("Minimum-Free", "How much of a Mac's disk is kept free.")),
	tables.Wide(tables.Column("Reboot", "When a Mac in quarantine is rebooted.")),
}

// NewTableConvertor returns what prints RackConfigs.
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
