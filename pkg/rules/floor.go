package rules

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
)

// BoundAt returns the stored binding time of a lease that is bound now: the next full second. Times
// are stored in seconds, and rounding down would shorten the floor.
func BoundAt(now time.Time) time.Time {
	if whole := now.Truncate(time.Second); whole.Before(now) {
		return whole.Add(time.Second)
	}
	return now
}

// EarliestRelease returns the floor of a lease: minimum after its binding, but at least 24 hours.
func EarliestRelease(boundAt time.Time, minimum time.Duration) time.Time {
	return boundAt.Add(max(minimum, MinimumLeaseDuration))
}

// Floor returns the effective floor of a lease: the stored one, or the one that follows from its
// binding if that is later. A stored floor that is missing (the zero time) or too short therefore
// shortens no lease.
func Floor(boundAt time.Time, minimum time.Duration, stored time.Time) time.Time {
	if floor := EarliestRelease(boundAt, minimum); floor.After(stored) {
		return floor
	}
	return stored
}

// LeaseFloor is Floor for the stored fields of a lease: boundAt and earliestReleaseAt may be nil.
// The floor of a lease that was never bound is the zero time.
func LeaseFloor(boundAt *metav1.Time, minimum time.Duration, earliestReleaseAt *metav1.Time) time.Time {
	if boundAt == nil {
		return time.Time{}
	}
	return Floor(boundAt.Time, minimum, ptr.Deref(earliestReleaseAt, metav1.Time{}).Time)
}

// LeaseExpiry returns the time at which a lease deletes itself, never before its floor. It is the
// zero time for a lease that is kept, whose expireAfter is 0, and for one that was never bound.
func LeaseExpiry(boundAt *metav1.Time, expireAfter time.Duration, floor time.Time) time.Time {
	if boundAt == nil || expireAfter == 0 {
		return time.Time{}
	}
	if expiry := boundAt.Add(expireAfter); expiry.After(floor) {
		return expiry
	}
	return floor
}

// FloorPassed reports whether the floor has passed.
func FloorPassed(now, earliestRelease time.Time) bool {
	return !now.Before(earliestRelease)
}

// CheckRelease refuses to release a Mac before its floor.
func CheckRelease(now, earliestRelease time.Time) error {
	if FloorPassed(now, earliestRelease) {
		return nil
	}
	return refuse(TwentyFourHours, "the Mac stays with its lease until %s, in %s; MacRack releases it then",
		earliestRelease.UTC().Format(time.RFC3339), duration.HumanDuration(earliestRelease.Sub(now)))
}

// CheckMinimumDuration refuses a minimum duration below 24 hours or above the maximum.
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
