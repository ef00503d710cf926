package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFloor(t *testing.T) {
	bound := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	day := bound.Add(24 * time.Hour)
	assert.Equal(t, day, Floor(bound, 24*time.Hour, time.Time{}), "it is gone")
	assert.Equal(t, day, Floor(bound, 0, bound.Add(time.Hour)), "it is too short")
	assert.Equal(t, day.Add(time.Hour), Floor(bound, 24*time.Hour, day.Add(time.Hour)), "it is longer")
}

func TestLeaseExpiry(t *testing.T) {
	bound := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	boundAt, floor := &metav1.Time{Time: bound}, bound.Add(24*time.Hour)
	assert.Equal(t, bound.Add(48*time.Hour), LeaseExpiry(boundAt, 48*time.Hour, floor))
	assert.Equal(t, floor, LeaseExpiry(boundAt, time.Hour, floor), "never before its floor")
	assert.Zero(t, LeaseExpiry(boundAt, 0, floor), "it is kept")
	assert.Zero(t, LeaseExpiry(nil, 48*time.Hour, time.Time{}), "it is Pending")
}
