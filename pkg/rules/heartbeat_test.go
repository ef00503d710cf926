package rules

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var defaultHeartbeats = Heartbeats{Interval: 10 * time.Second, OfflineAfter: time.Minute}

func TestFleetInterval(t *testing.T) {
	for _, c := range []struct {
		name    string
		h       Heartbeats
		macs    int
		current time.Duration
		want    time.Duration
	}{
		{"no Macs", defaultHeartbeats, 0, 0, 10 * time.Second},
		{"a small fleet", defaultHeartbeats, 1000, 0, 10 * time.Second},
		{"a larger one", defaultHeartbeats, 1001, 0, 15 * time.Second},
		{"a large one", defaultHeartbeats, 1501, 0, 20 * time.Second},
		{"the limit of a Node", defaultHeartbeats, 100_000, 0, 20 * time.Second},
		{"growth", defaultHeartbeats, 1501, 15 * time.Second, 20 * time.Second},
		{"a little less keeps the interval", defaultHeartbeats, 1499, 20 * time.Second, 20 * time.Second},
		{"much less shortens it", defaultHeartbeats, 1000, 20 * time.Second, 10 * time.Second},
		{"offlineAfter limits it", Heartbeats{10 * time.Second, 45 * time.Second}, 5000, 0, 15 * time.Second},
		{"offlineAfter was shortened", Heartbeats{10 * time.Second, 30 * time.Second}, 5000, 20 * time.Second, 10 * time.Second},
		{"a long configured interval stays", Heartbeats{time.Minute, 3 * time.Minute}, 5000, 0, time.Minute},
		{"and for few Macs", Heartbeats{time.Minute, 3 * time.Minute}, 5, 0, time.Minute},
		{"a short configured interval", Heartbeats{time.Second, 30 * time.Second}, 50, 0, 5 * time.Second},
	} {
		assert.Equal(t, c.want, c.h.FleetInterval(c.macs, c.current), c.name)
	}
}

func TestImageCheckInterval(t *testing.T) {
	assert.Equal(t, 15*time.Second, defaultHeartbeats.ImageCheckInterval(0))
	assert.Equal(t, 5*time.Minute, defaultHeartbeats.ImageCheckInterval(15*time.Second))
	assert.Equal(t, time.Minute, Heartbeats{time.Minute, 3 * time.Minute}.ImageCheckInterval(20*time.Second), "the size of the fleet has no effect")
}

func TestAllowedSilence(t *testing.T) {
	for _, c := range []struct {
		name  string
		h     Heartbeats
		lease time.Duration
		want  time.Duration
	}{
		{"no Lease", defaultHeartbeats, 0, time.Minute},
		{"an agent with the configured interval", defaultHeartbeats, 40 * time.Second, time.Minute},
		{"an agent with the longest interval of a fleet", defaultHeartbeats, 80 * time.Second, time.Minute},
		{"an agent that does not know a shorter offlineAfter", Heartbeats{10 * time.Second, 30 * time.Second}, 80 * time.Second, time.Minute},
		{"an agent that does not know a shorter interval", defaultHeartbeats, 20 * time.Minute, 15 * time.Minute},
		{"an offlineAfter that is too short", Heartbeats{10 * time.Second, time.Second}, 0, 30 * time.Second},
		{"an absurd Lease", defaultHeartbeats, 1000 * time.Hour, 15 * time.Minute},
	} {
		assert.Equal(t, c.want, c.h.AllowedSilence(c.lease), c.name)
	}
}

// TestHeartbeatsProperties checks random configurations: no valid interval makes a Mac offline, and
// an interval that is applied once does not change again.
func TestHeartbeatsProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	seconds := func(from, to int) time.Duration { return time.Duration(from+random.IntN(to-from+1)) * time.Second }
	valid := func() Heartbeats {
		interval := seconds(1, 300)
		return Heartbeats{interval, MinimumMissedHeartbeats*interval + seconds(0, 3600)}
	}
	for range 10_000 {
		old, h, macs := valid(), valid(), random.IntN(20_000)
		says := fmt.Sprint(old, h, macs)

		before := old.FleetInterval(random.IntN(20_000), 0)
		fleet := h.FleetInterval(macs, before)
		require.GreaterOrEqual(t, fleet, h.Interval, says)
		require.LessOrEqual(t, fleet, max(h.Interval, MaxFleetHeartbeatInterval), says)
		require.Equal(t, fleet, h.FleetInterval(macs, fleet), "stable: %s", says)
		require.LessOrEqual(t, h.FleetInterval(macs, 0), h.FleetInterval(macs+1, 0), "monotonic: %s", says)

		// Three heartbeats of an agent fit, whatever it knows of the fleet.
		agent := h.AgentInterval(before)
		require.LessOrEqual(t, MinimumMissedHeartbeats*agent, h.AllowedSilence(0), says)
		// An agent that knows only the old configuration.
		unaware := old.AgentInterval(before)
		require.LessOrEqual(t, MinimumMissedHeartbeats*unaware, h.AllowedSilence(LeaseDuration(unaware)), says)
		// The interval of a fleet does not delay the detection.
		require.Equal(t, h.OfflineAfter, h.AllowedSilence(LeaseDuration(agent)), says)
	}
}
