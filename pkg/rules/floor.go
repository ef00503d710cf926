package rules

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
)

// BoundAt returns the moment of binding that is stored for a lease that is bound now: the next full second,
// as times are stored in seconds and cutting one off would shorten the floor.
func BoundAt(now time.Time) time.Time {
	if whole := now.Truncate(time.Second); whole.Before(now) {
		return whole.Add(time.Second)
	}
	return now
}

// EarliestRelease returns the floor of a lease: minimum after it was bound, and 24 hours after at least.
func EarliestRelease(boundAt time.Time, minimum time.Duration) time.Time {
	return boundAt.Add(max(minimum, MinimumLeaseDuration))
}

// Floor returns the floor that a lease is held to: the stored one, or what follows from its binding if that is later, as a stored
// floor that is gone (the zero time) or too short shortens nothing.
func Floor(boundAt time.Time, minimum time.Duration, stored time.Time) time.Time {
	if floor := EarliestRelease(boundAt, minimum); floor.After(stored) {
		return floor
	}
	return stored
}

// LeaseFloor is Floor of what a lease has stored: boundAt and earliestReleaseAt may be nil. The floor of a lease that was never
// bound is the zero time.
func LeaseFloor(boundAt *metav1.Time, minimum time.Duration, earliestReleaseAt *metav1.Time) time.Time {
	if boundAt == nil {
		return time.Time{}
	}
	return Floor(boundAt.Time, minimum, ptr.Deref(earliestReleaseAt, metav1.Time{}).Time)
}

// FloorPassed says whether the floor has elapsed.
func FloorPassed(now, earliestRelease time.Time) bool {
	return !now.Before(earliestRelease)
}

// CheckRelease refuses to release a Mac before its floor.
func CheckRelease(now, earliestRelease time.Time) error {
	if FloorPassed(now, earliestRelease) {
		return nil
	}
	return refuse(TwentyFourHours, "the Mac stays with its lease until %s, in %s; it is released by itself then",
		earliestRelease.UTC().Format(time.RFC3339), duration.HumanDuration(earliestRelease.Sub(now)))
}

// CheckMinimumDuration refuses a minimum duration below 24 hours or out of proportion.
func CheckMinimumDuration(asked time.Duration) error {
	if asked < MinimumLeaseDuration {
		return refuse(TwentyFourHours, "a Mac is leased for 24h or more, not %s; leave the field out for 24h", asked)
	}
	if asked > MaxLeaseDuration {
		return refuse(TwentyFourHours, "a Mac is leased for at most %dh at a time, not %s; use a shorter duration and lengthen it later",
			int64(MaxLeaseDuration.Hours()), asked)
	}
	return nil
}
