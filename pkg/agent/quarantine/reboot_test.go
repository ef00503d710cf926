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
	assert.Empty(t, refuseReboot(nil, 3, now, now))
	assert.Empty(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour)}, 3, now, now))
	assert.Contains(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour), at(3 * time.Hour)}, 3, now, now), "rebooted 3 times within 24h")
	assert.Empty(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour), at(25 * time.Hour)}, 3, now, now))
	assert.Contains(t, refuseReboot([]reboot{at(time.Hour)}, 3, ago(time.Hour+time.Minute), now), "a reboot did not end the quarantine")
	assert.Contains(t, refuseReboot([]reboot{at(-time.Hour), at(-2 * time.Hour), at(-3 * time.Hour)}, 3, now, now), "3 times", "the clock was set back")
	assert.Empty(t, refuseReboot([]reboot{at(time.Hour), at(2 * time.Hour), at(3 * time.Hour)}, 4, now, now), "the RackConfig permits more")
	assert.Contains(t, refuseReboot([]reboot{at(time.Hour)}, 1, now, now), "rebooted 1 times")
}
