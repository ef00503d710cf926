package floor

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Decide returns the decisions that follow from the facts: the jobs to place, then the leases to
// create, then one decision for each lease.
func Decide(f Facts) []Decision {
	leases := slices.SortedFunc(slices.Values(f.Leases), f.keepFirst)
	decisions := place(f.Waiting, leases)
	decisions = append(decisions, f.grow()...)
	for i, l := range leases {
		decisions = append(decisions, f.keep(i, l))
	}
	return decisions
}

// decideAt returns the time from which a surplus lease is deleted.
func (f Facts) decideAt(l Lease) time.Time { return l.Floor.Add(-f.Limits.DecideBefore) }

// rank returns the place of a lease in the order in which leases are kept. Those without capacity
// come last, so that the first n leases are those that n leases' worth of demand needs.
func (f Facts) rank(l Lease) int {
	switch {
	case l.Phase == Ending:
		return 4
	case l.Offline:
		return 3
	case l.Phase == Pending:
		return 2
	case f.Now.Before(f.decideAt(l)):
		return 0
	}
	return 1
}

// keepFirst orders leases by how long they will be kept: paid ones first, the latest floor first,
// then those with the most jobs. Jobs are placed in this order, and surplus is at its end.
func (f Facts) keepFirst(a, b Lease) int {
	paid := f.rank(a) == 0
	switch r := cmp.Compare(f.rank(a), f.rank(b)); {
	case r != 0:
		return r
	case paid && !a.Floor.Equal(b.Floor):
		return b.Floor.Compare(a.Floor)
	}
	return cmp.Or(cmp.Compare(b.Busy, a.Busy), b.IdleSince.Compare(a.IdleSince), strings.Compare(a.Name, b.Name))
}

// place assigns the waiting jobs to booted machines, and counts them as busy.
func place(waiting []string, leases []Lease) []Decision {
	var decisions []Decision
	for i := range leases {
		l := &leases[i]
		for l.Phase == Bound && l.usable() && l.Ready > 0 && len(waiting) > 0 {
			decisions = append(decisions, Decision{Action: Place, Reason: FreeMachine, Lease: l.Name, Job: waiting[0]})
			waiting, l.Busy, l.Ready = waiting[1:], l.Busy+1, l.Ready-1
		}
	}
	return decisions
}

// grow returns one decision for each lease to create, and one if a lease is refused or gets no Mac.
func (f Facts) grow() []Decision {
	live, usable, bound := 0, 0, 0
	refusal := Decision{Action: Wait, Reason: Maximum}
	refused, noMac := false, false
	for _, l := range f.Leases {
		if l.Phase != Ending {
			live++
		}
		if l.usable() {
			usable++
		}
		if l.usable() && l.Phase == Bound {
			bound++
		}
		if l.Phase == Pending && l.Refusal != "" {
			refusal, refused, noMac = Decision{Action: Wait, Reason: NoMac, Detail: l.Refusal}, true, true
		}
	}
	if f.Refused != "" {
		refusal, refused = Decision{Action: Wait, Reason: f.Refused, Detail: f.RefusedDetail}, true
	}
	missing, reason := f.missing(live, usable)
	room := max(f.Limits.Max-len(f.Leases), 0)
	if refused {
		room = 0
	}
	decisions := slices.Repeat([]Decision{{Action: Grow, Reason: reason}}, min(missing, room))
	needed := max(f.Limits.leases(f.Limits.slots(f.Demand())), f.Limits.Min)
	if missing > room || noMac && needed > bound {
		decisions = append(decisions, refusal)
	}
	return decisions
}

// missing returns the number of leases to create, and the reason.
func (f Facts) missing(live, usable int) (int, Reason) {
	limits := f.Limits
	missing, reason := limits.leases(limits.slots(f.Sustained))-usable, SustainedDemand
	// The forecast alone leases no Mac. It counts once the present demand confirms it.
	if limits.leases(limits.slots(f.Demand())) > usable {
		if n := limits.leases(f.Expected) - usable; n > missing {
			missing, reason = n, ExpectedDemand
		}
	}
	if n := limits.Min - live; n > missing {
		missing, reason = n, Minimum
	}
	return max(missing, 0), reason
}

// keep decides whether to keep the lease with index i in the order in which leases are kept.
func (f Facts) keep(i int, l Lease) Decision {
	limits := f.Limits
	idleUntil := l.IdleSince.Add(limits.KeepIdle)
	keep := func(reason Reason, until time.Time) Decision {
		return Decision{Action: Keep, Reason: reason, Lease: l.Name, Until: until}
	}
	release := func(action Action, until time.Time) Decision {
		return Decision{Action: action, Reason: Surplus, Lease: l.Name, Until: until}
	}
	switch {
	case l.Phase == Ending:
		return keep(Deleted, l.Floor)
	case l.Phase == Bound && f.Now.Before(f.decideAt(l)):
		return keep(Paid, f.decideAt(l))
	case l.usable() && i < limits.leases(limits.slots(f.Demand())):
		return keep(Needed, time.Time{})
	case l.Busy > 0:
		return keep(Busy, time.Time{})
	case l.usable() && i < limits.leases(f.Expected):
		return keep(ExpectedDemand, time.Time{})
	case i < limits.Min:
		return keep(Minimum, time.Time{})
	case f.Unknown:
		return keep(Unknown, time.Time{})
	case l.Phase == Pending:
		return release(ReleaseNow, time.Time{})
	case f.Now.Before(idleUntil):
		return keep(RecentlyUsed, idleUntil)
	case f.Now.Before(l.Floor):
		return release(ReleaseAtFloor, l.Floor)
	}
	return release(ReleaseNow, time.Time{})
}
