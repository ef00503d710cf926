package quarantine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRebootsAreBounded(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	at := func(d time.Duration) reboot { return reboot{At: ago(d), Quarantine: ago(d + time.Minute)} }
	assert.Empty(t, refuseReboot(nil, now, now))
	assert.Empty(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour)}, now, now))
	assert.Contains(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour), at(3 * time.Hour)}, now, now), "rebooted 3 times within 24h")
	assert.Empty(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour), at(25 * time.Hour)}, now, now))
	assert.Contains(t, refuseReboot([]reboot{at(time.Hour)}, ago(time.Hour+time.Minute), now), "a reboot did not end the quarantine")
	assert.Contains(t, refuseReboot([]reboot{at(-time.Hour), at(-2 * time.Hour), at(-3 * time.Hour)}, now, now), "3 times", "the clock was set back")
}
