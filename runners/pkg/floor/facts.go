package floor

import "time"

// Limits are the settings of a set.
type Limits struct {
	// Min and Max bound the number of leases. Deleted leases count until their Macs are released.
	Min, Max int
	// PerLease is the number of virtual machines on a Mac: 1 or 2.
	PerLease int
	// Warm is the number of slots that should be free while there is demand.
	Warm int
	// Steady is true if each machine has a job from its boot, whether or not the set needs it. Warm
	// is then the number of machines to have.
	Steady bool
	// GrowAfter is the time for which demand exceeds the capacity before another Mac is leased.
	GrowAfter time.Duration
	// KeepIdle is the time for which a lease is idle before it is surplus.
	KeepIdle time.Duration
	// DecideBefore is the time before the floor of a lease at which its end is decided.
	DecideBefore time.Duration
}

// Phase is the phase of a lease.
type Phase string

const (
	// Pending means that the lease has no Mac yet. It costs nothing.
	Pending Phase = "Pending"
	// Bound means that the lease has a Mac.
	Bound Phase = "Bound"
	// Ending means that the lease was deleted and still has its Mac.
	Ending Phase = "Ending"
)

// Lease is the observed state of a lease.
type Lease struct {
	// Name is the name of the lease.
	Name string
	// Phase is the phase of the lease. The other fields are only set for a Bound lease, except
	// Refusal.
	Phase Phase
	// Floor is the earliest release of the Mac.
	Floor time.Time
	// IdleSince is the time at which the last job ended, or that of the binding.
	IdleSince time.Time
	// Busy is the number of machines with a job, and Ready the number of booted ones without.
	Busy, Ready int
	// Offline is true while the Mac is offline or in quarantine.
	Offline bool
	// Refusal is the reason and the message of a Pending lease without a Mac, such as
	// "NoMacAvailable: …"; otherwise empty.
	Refusal string
}

// Facts are all inputs of a decision.
type Facts struct {
	// Now is the time of the decision.
	Now time.Time
	// Limits are the settings of the set.
	Limits Limits
	// Leases are the leases of the set.
	Leases []Lease
	// Waiting are the names of the jobs in the queue, oldest first.
	Waiting []string
	// Unknown is true while the source has not reported which jobs wait, as after a restart.
	Unknown bool
	// Sustained is the number of jobs below which Demand has not fallen for GrowAfter.
	Sustained int
	// Expected is the forecast: the highest expected demand of the next hours.
	Expected int
	// Refused is QuotaExceeded or LeaseRefused if the API server has just refused a lease, and
	// RefusedDetail is its message; otherwise they are empty.
	Refused       Reason
	RefusedDetail string
}

// Demand returns the number of jobs that need a slot: those that wait, and those that run on the
// capacity. Jobs on offline and deleted leases have slots that count as no capacity. The demand of
// a steady set is Warm.
func (f Facts) Demand() int {
	if f.Limits.Steady {
		return f.Limits.Warm
	}
	n := len(f.Waiting)
	for _, l := range f.Leases {
		if l.usable() {
			n += l.Busy
		}
	}
	return n
}

// usable reports whether the lease is capacity, now or as soon as it is bound.
func (l Lease) usable() bool { return l.Phase != Ending && !l.Offline }

// slots returns the number of slots for jobs, including the free ones that Warm asks for.
// The machines of a steady set are never free.
func (l Limits) slots(jobs int) int {
	if jobs == 0 || l.Steady {
		return jobs
	}
	return jobs + l.Warm
}

// leases returns the number of leases with the given number of slots.
func (l Limits) leases(slots int) int { return (slots + l.PerLease - 1) / l.PerLease }
