package rackconfig

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
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
			period(c.Spec.Audit.Retention),
			period(c.Spec.Agent.HeartbeatInterval),
			period(c.Spec.Agent.OfflineAfter),
			tables.Text(c.Spec.DefaultClassName),
			tables.Age(clock, c.CreationTimestamp),
			minimumFree,
			tables.Text(string(c.Spec.Quarantine.Reboot)),
		}
	})
}

// period returns a duration as 400d, or as it was written if it is no whole number of days.
func period(d *metav1.Duration) string {
	switch {
	case d == nil:
		return tables.None
	case d.Duration >= 24*time.Hour && d.Duration%(24*time.Hour) == 0:
		return duration.HumanDuration(d.Duration)
	default:
		return d.Duration.String()
	}
}
