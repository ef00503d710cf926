package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCheckAcceptsInstance(t *testing.T) {
	floor := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		phase string
		now   time.Time
		ok    bool
	}{
		"bound":                       {"Bound", floor.Add(-time.Hour), true},
		"bound, long after the floor": {"Bound", floor.Add(100 * time.Hour), true},
		"held":                        {"Held", floor.Add(-time.Nanosecond), true},
		"held, at the floor":          {"Held", floor, false},
		"held, controller is late":    {"Held", floor.Add(time.Hour), false},
		"pending":                     {"Pending", floor, false},
		"not even pending":            {"", floor, false},
		"releasing":                   {"Releasing", floor.Add(-time.Hour), false},
		"released":                    {"Released", floor.Add(-time.Hour), false},
		"an unknown phase":            {"Sublet", floor.Add(-time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckAcceptsInstance("build", tt.phase, floor, tt.now)
			assert.Equal(t, tt.ok, err == nil, "%v", err)
		})
	}
}
