package simulate

import (
	"fmt"
	"time"

	"macrack.io/macrack/runners/pkg/floor"
)

// minimumDuration is the time for which a lease is paid at least.
const minimumDuration = 24 * time.Hour

// Timing are the delays of the simulated system.
type Timing struct {
	// Bind is the time from the creation of a lease to its binding.
	Bind time.Duration
	// Boot is the time in which a machine boots. Each job has a machine of its own, so a slot boots
	// another one after each job.
	Boot time.Duration
}

// lease is a simulated lease. The zero times are in the future.
type lease struct {
	name     string
	boundAt  time.Time
	deleted  bool
	endsAt   time.Time // if deleted
	idleFrom time.Time
	slots    []slot
}

// slot is a place for a machine. Its machine is booting until readyAt; a job runs until freeAt.
type slot struct {
	busy    bool
	readyAt time.Time
	freeAt  time.Time
}

func newLease(n int, boundAt time.Time, perLease int, boot time.Duration) *lease {
	l := &lease{name: fmt.Sprintf("lease-%03d", n), boundAt: boundAt, idleFrom: boundAt, slots: make([]slot, perLease)}
	for i := range l.slots {
		l.slots[i].readyAt = boundAt.Add(boot)
	}
	return l
}

func (l *lease) floor() time.Time { return l.boundAt.Add(minimumDuration) }

// advance ends the jobs that are over at now, and boots the next machines.
func (l *lease) advance(now time.Time, boot time.Duration) {
	for i := range l.slots {
		if s := &l.slots[i]; s.busy && !s.freeAt.After(now) {
			*s = slot{readyAt: s.freeAt.Add(boot)}
			l.idleFrom = s.readyAt.Add(-boot)
		}
	}
}

// ended reports whether the lease has released its Mac, or was deleted before it had one.
func (l *lease) ended(now time.Time) bool { return l.deleted && !l.endsAt.After(now) }

// facts returns the lease as the rule sees it.
func (l *lease) facts(now time.Time) floor.Lease {
	if l.boundAt.After(now) {
		return floor.Lease{Name: l.name, Phase: floor.Pending}
	}
	facts := floor.Lease{Name: l.name, Phase: floor.Bound, Floor: l.floor(), IdleSince: l.idleFrom}
	if l.deleted {
		facts.Phase = floor.Ending
	}
	for _, s := range l.slots {
		switch {
		case s.busy:
			facts.Busy++
		case !s.readyAt.After(now):
			facts.Ready++
		}
	}
	return facts
}

// run starts a job on a booted machine.
func (l *lease) run(now time.Time, duration time.Duration) {
	for i := range l.slots {
		if s := &l.slots[i]; !s.busy && !s.readyAt.After(now) {
			s.busy, s.freeAt = true, now.Add(duration)
			return
		}
	}
	panic("no booted machine on " + l.name)
}

// delete deletes the lease. Its Mac is released at the floor, or at once after it.
func (l *lease) delete(now time.Time) {
	for _, s := range l.slots {
		if s.busy {
			panic("deletion of " + l.name + " ends a job")
		}
	}
	l.deleted, l.endsAt = true, now
	if !l.boundAt.After(now) && l.floor().After(now) {
		l.endsAt = l.floor()
	}
}

// next returns the next time after now at which the state of the lease changes by itself.
func (l *lease) next(now time.Time) time.Time {
	next := earliest(now, l.boundAt, l.endsAt)
	for _, s := range l.slots {
		next = earliest(now, next, earliest(now, s.readyAt, s.freeAt))
	}
	return next
}

// earliest returns the earlier of two times that are after now, or the zero time.
func earliest(now, a, b time.Time) time.Time {
	if !a.After(now) || b.After(now) && b.Before(a) {
		a = b
	}
	if !a.After(now) {
		return time.Time{}
	}
	return a
}

// paid returns the time for which the Mac of the lease is paid, up to the end of the simulation.
func (l *lease) paid(end time.Time) time.Duration {
	if l.deleted && l.endsAt.Before(end) {
		end = l.endsAt
	}
	if end.Before(l.boundAt) {
		return 0
	}
	return max(end.Sub(l.boundAt), minimumDuration)
}
