package rules

import "time"

const (
	// MinimumMissedHeartbeats is the minimum number of missed heartbeats after which a Mac is
	// offline.
	MinimumMissedHeartbeats = 3

	// MaxHeartbeatInterval is the maximum interval between the heartbeats of an agent.
	MaxHeartbeatInterval = 5 * time.Minute

	// MaxFleetHeartbeatInterval is the maximum interval that the size of a fleet can cause. An
	// agent can then miss a heartbeat before kube-controller-manager marks its Node as not ready.
	// That happens after 50 seconds by default, and no RackConfig changes it.
	MaxFleetHeartbeatInterval = 20 * time.Second

	// MinimumImageCheckInterval is the minimum interval at which an agent looks for images that
	// only Macs can verify.
	MinimumImageCheckInterval = 15 * time.Second

	// fleetImageCheckInterval is that interval in a large fleet.
	fleetImageCheckInterval = 5 * time.Minute

	// fleetHeartbeats is the number of heartbeats a second above which a fleet gets a longer
	// interval.
	fleetHeartbeats = 100

	// heartbeatStep is the unit of the intervals of fleets. Few of them, and the margin in
	// FleetInterval, keep a fleet that grows and shrinks a little from changing its interval.
	heartbeatStep = 5 * time.Second

	// leaseHeartbeats is the duration of a Node's Lease in heartbeats, as the kubelet has it.
	leaseHeartbeats = 4
)

// Heartbeats is the configuration of heartbeats.
type Heartbeats struct {
	// Interval is the configured interval, which no size of a fleet shortens.
	Interval time.Duration
	// OfflineAfter is the configured time without a heartbeat after which a Mac is offline.
	OfflineAfter time.Duration
}

// longest returns the longest interval that the size of a fleet can cause. MinimumMissedHeartbeats
// of them fit into OfflineAfter, so a longer interval never makes a Mac offline earlier.
func (h Heartbeats) longest() time.Duration {
	return max(h.Interval, min(h.OfflineAfter/MinimumMissedHeartbeats, MaxFleetHeartbeatInterval))
}

// FleetInterval returns the interval for a fleet of Macs whose interval is current; 0 for none.
func (h Heartbeats) FleetInterval(macs int, current time.Duration) time.Duration {
	wanted := time.Duration(macs) * time.Second / fleetHeartbeats
	wanted = (wanted + heartbeatStep - 1) / heartbeatStep * heartbeatStep
	if wanted < current && current <= wanted+heartbeatStep {
		wanted = current
	}
	return h.AgentInterval(wanted)
}

// AgentInterval returns the interval of an agent. The interval of the fleet applies within the
// limits of the configuration, which may be newer.
func (h Heartbeats) AgentInterval(fleet time.Duration) time.Duration {
	return min(max(fleet, h.Interval), h.longest())
}

// ImageCheckInterval returns the interval at which an agent looks for images that only Macs can
// verify. One Mac is sufficient, so the agents of a fleet that has a longer interval of heartbeats
// look rarely: it has hundreds of Macs at least.
func (h Heartbeats) ImageCheckInterval(fleet time.Duration) time.Duration {
	if h.AgentInterval(fleet) > h.Interval {
		return fleetImageCheckInterval
	}
	return max(MinimumImageCheckInterval, h.Interval)
}

// AllowedSilence returns the time without a heartbeat after which a Mac is offline. The Lease of
// the last heartbeat has the interval that the agent used then. So an agent that has not received a
// changed configuration yet is not offline.
func (h Heartbeats) AllowedSilence(lease time.Duration) time.Duration {
	used := min(lease/leaseHeartbeats, MaxHeartbeatInterval)
	return max(h.OfflineAfter, MinimumMissedHeartbeats*h.Interval, MinimumMissedHeartbeats*used)
}

// LeaseDuration returns the duration of the Lease of an agent with the interval.
func LeaseDuration(interval time.Duration) time.Duration { return leaseHeartbeats * interval }
