package rules

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestInstanceDeadline(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(noon.Add(d))) }
	for name, tt := range map[string]struct {
		startedAt, grantedAt *metav1.Time
		seconds              *int64
		want                 time.Time
	}{
		"no deadline":                  {at(0), at(0), nil, time.Time{}},
		"not started":                  {nil, at(0), ptr.To[int64](60), time.Time{}},
		"after a minute":               {at(5 * time.Second), at(0), ptr.To[int64](60), noon.Add(65 * time.Second)},
		"a start without a grant":      {at(0), nil, ptr.To[int64](60), noon.Add(time.Minute)},
		"a Mac whose clock is at 1970": {ptr.To(metav1.NewTime(time.Unix(0, 0))), at(0), ptr.To[int64](60), noon.Add(time.Minute)},
		"beyond the maximum":           {at(0), at(0), ptr.To[int64](math.MaxInt64), noon.Add(MaxLeaseDuration)},
		"negative":                     {at(0), at(0), ptr.To[int64](-1), noon},
	} {
		t.Run(name, func(t *testing.T) {
			assert.True(t, tt.want.Equal(InstanceDeadline(tt.startedAt, tt.grantedAt, tt.seconds)))
		})
	}
}

func TestInstanceExpiry(t *testing.T) {
	noon := metav1.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	assert.Zero(t, InstanceExpiry(&noon, nil))
	assert.Zero(t, InstanceExpiry(nil, ptr.To[int32](0)))
	assert.Equal(t, noon.Time, InstanceExpiry(&noon, ptr.To[int32](0)))
	assert.Equal(t, noon.Add(time.Hour), InstanceExpiry(&noon, ptr.To[int32](3600)))
	assert.Equal(t, noon.Add(MaxLeaseDuration), InstanceExpiry(&noon, ptr.To[int32](math.MaxInt32)))
}

func TestIsDue(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	assert.False(t, IsDue(time.Time{}, noon))
	assert.False(t, IsDue(noon, noon.Add(-time.Nanosecond)))
	assert.True(t, IsDue(noon, noon))
}

func TestStoppedByDeadline(t *testing.T) {
	assert.True(t, StoppedByDeadline(ptr.To[int64](60), "DeadlineExceeded"))
	assert.False(t, StoppedByDeadline(ptr.To[int64](60), "Asked"))
	assert.False(t, StoppedByDeadline(nil, "DeadlineExceeded"), "a tenant can give any reason")
	assert.Equal(t, "DeadlineExceeded: the virtual machine ran for 60 seconds (spec.activeDeadlineSeconds)", DescribeDeadline(60))
}
