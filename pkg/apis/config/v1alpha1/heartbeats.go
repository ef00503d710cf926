package v1alpha1

import (
	"cmp"

	"macrack.io/macrack/pkg/rules"
)

// Heartbeats returns the configuration of heartbeats. Nil is the default configuration.
func (c *RackConfig) Heartbeats() rules.Heartbeats {
	h := rules.Heartbeats{Interval: DefaultHeartbeatInterval, OfflineAfter: DefaultOfflineAfter}
	if c != nil {
		h.Interval = cmp.Or(c.Spec.Agent.HeartbeatInterval.Value(), h.Interval)
		h.OfflineAfter = cmp.Or(c.Spec.Agent.OfflineAfter.Value(), h.OfflineAfter)
	}
	return h
}
