package rules

import "time"

// BillingPeriod is the billed unit of time: one dedicated Mac for 24 hours.
const BillingPeriod = 24 * time.Hour

// LeaseTimes are the times of a bound lease. Billing uses no other facts.
type LeaseTimes struct {
	// BoundAt is the time of the binding.
	BoundAt time.Time
	// Floor is the earliest release.
	Floor time.Time
	// DeletedAt is the time of the deletion; zero if the lease is not deleted.
	DeletedAt time.Time
	// ReleasedAt is the time of the release; zero if the lease still has its Mac.
	ReleasedAt time.Time
}

// LeaseUse is the use of a Mac by a lease in a window of time.
type LeaseUse struct {
	// Days is the number of billed periods.
	Days int64
	// Chassis is the time for which the lease had the Mac.
	Chassis time.Duration
	// Held is the time between the deletion and the floor.
	Held time.Duration
}

// BillableUntil returns the end of the billable time: the deletion, but not before the floor. It is
// the zero time if the lease is not deleted. The release does not prolong the billable time,
// because its duration depends on the provider's scrub.
func (t LeaseTimes) BillableUntil() time.Time {
	end := t.DeletedAt
	if end.IsZero() || !t.ReleasedAt.IsZero() && t.ReleasedAt.Before(end) {
		end = t.ReleasedAt
	}
	if !end.IsZero() && end.Before(t.Floor) {
		return t.Floor
	}
	return end
}

// Use returns the use of the Mac in the window from one time up to, but not including, another.
// Each billed period is in the window in which it starts, so the uses of consecutive windows add up
// to that of all of them.
func (t LeaseTimes) Use(from, to time.Time) LeaseUse {
	use := LeaseUse{
		Days:    t.startedPeriods(to) - t.startedPeriods(from),
		Chassis: overlap(t.BoundAt, t.ReleasedAt, from, to),
	}
	if heldUntil := earliest(t.Floor, t.ReleasedAt); !t.DeletedAt.IsZero() && t.DeletedAt.Before(heldUntil) {
		use.Held = overlap(t.DeletedAt, heldUntil, from, to)
	}
	return use
}

// startedPeriods returns the number of billed periods that start before a time.
func (t LeaseTimes) startedPeriods(before time.Time) int64 {
	started := earliest(before, t.BillableUntil()).Sub(t.BoundAt)
	if started <= 0 {
		return 0
	}
	return int64((started + BillingPeriod - 1) / BillingPeriod)
}

// earliest returns the earlier of two times. The second is ignored if it is the zero time.
func earliest(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// overlap returns the time that two periods share. The first has no end if it is the zero time.
func overlap(aFrom, aTo, bFrom, bTo time.Time) time.Duration {
	from := aFrom
	if bFrom.After(from) {
		from = bFrom
	}
	return max(0, earliest(bTo, aTo).Sub(from))
}
