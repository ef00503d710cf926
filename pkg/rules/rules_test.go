package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The numbers are those of the licence. A change must also change this test, and needs a
// justification.
func TestConstants(t *testing.T) {
	assert.Equal(t, 2, MaxVMsPerMac)
	assert.Equal(t, 24*time.Hour, MinimumLeaseDuration)
	assert.Equal(t, 90*24*time.Hour, MinimumAuditRetention)
}

func TestBoundAt(t *testing.T) {
	whole := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	assert.Equal(t, whole, BoundAt(whole))
	assert.Equal(t, whole.Add(time.Second), BoundAt(whole.Add(time.Nanosecond)), "cutting off would shorten the floor")
	assert.Equal(t, whole.Add(time.Second), BoundAt(whole.Add(999*time.Millisecond)))
}

func TestEarliestRelease(t *testing.T) {
	bound := time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		minimum time.Duration
		want    time.Time
	}{
		"the minimum":      {24 * time.Hour, bound.Add(24 * time.Hour)},
		"longer":           {100 * time.Hour, bound.Add(100 * time.Hour)},
		"none":             {0, bound.Add(24 * time.Hour)},
		"a second too few": {24*time.Hour - time.Second, bound.Add(24 * time.Hour)},
		"negative":         {-time.Hour, bound.Add(24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, EarliestRelease(bound, tt.minimum)) })
	}
	// A day on which clocks are moved has 23 or 25 hours by the wall, and 24 here.
	berlin, err := time.LoadLocation("Europe/Berlin")
	if assert.NoError(t, err) {
		assert.Equal(t, 24*time.Hour, EarliestRelease(bound.In(berlin), 24*time.Hour).Sub(bound))
	}
}

func TestCheckRelease(t *testing.T) {
	floor := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	assert.NoError(t, CheckRelease(floor, floor))
	assert.NoError(t, CheckRelease(floor.Add(time.Hour), floor))
	assert.EqualError(t, CheckRelease(floor.Add(-19*time.Hour), floor),
		"rule 3 (at least 24 hours): the Mac stays with its lease until 2026-03-01T12:00:00Z, in 19h; MacRack releases it then")
	assert.Error(t, CheckRelease(floor.Add(-time.Nanosecond), floor))
}

func TestCheckMinimumDuration(t *testing.T) {
	assert.NoError(t, CheckMinimumDuration(24*time.Hour))
	assert.NoError(t, CheckMinimumDuration(MaxLeaseDuration))
	for _, d := range []time.Duration{0, -1, time.Hour, 24*time.Hour - 1, MaxLeaseDuration + 1, 1<<63 - 1, -1 << 63} {
		assert.Error(t, CheckMinimumDuration(d), d)
	}
	assert.EqualError(t, CheckMinimumDuration(time.Hour), "rule 3 (at least 24 hours): a Mac is leased for 24h or more, not 1h0m0s; leave the field out for 24h")
}

func TestNodePhase(t *testing.T) {
	for want, facts := range map[string][]NodeFacts{
		"Pending":     {{}, {Offline: true}},
		"Available":   {{Seen: true}},
		"Leased":      {{Seen: true, Leased: true}, {Seen: true, Leased: true, Maintenance: true}},
		"Releasing":   {{Seen: true, Leased: true, Releasing: true}},
		"Offline":     {{Seen: true, Offline: true}, {Seen: true, Offline: true, Leased: true, Releasing: true}},
		"Maintenance": {{Seen: true, Maintenance: true}, {Maintenance: true}},
		"Quarantined": {{Quarantined: true}, {Seen: true, Quarantined: true, Offline: true, Leased: true}},
	} {
		for _, f := range facts {
			assert.Equal(t, want, NodePhase(f), "%+v", f)
		}
	}
}
