package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFloor(t *testing.T) {
	bound := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	day := bound.Add(24 * time.Hour)
	assert.Equal(t, day, Floor(bound, 24*time.Hour, time.Time{}), "it is gone")
	assert.Equal(t, day, Floor(bound, 0, bound.Add(time.Hour)), "it is too short")
	assert.Equal(t, day.Add(time.Hour), Floor(bound, 24*time.Hour, day.Add(time.Hour)), "it is longer")
}
