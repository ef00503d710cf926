package simulate

import (
	"slices"
	"strconv"
	"time"

	"macrack.io/macrack/runners/pkg/floor"
)

// resync is the interval at which the rule is asked even if nothing has changed.
const resync = time.Minute

// run is the course of a job: it waited from its queueing to start.
type run struct {
	queued, start, end time.Time
}

// replay is one replay of a trace.
type replay struct {
	limits  floor.Limits
	timing  Timing
	adjust  func(*floor.Facts)
	jobs    []Job
	runs    []run
	waiting []int // indexes of jobs
	leases  []*lease
	live    []*lease // those that have not ended
	history floor.History
	begin   time.Time
	end     time.Time
}

// newReplay replays the jobs, which are in the order of the queue. It lasts for whole days, and
// until the last job has ended. The adjust function changes the facts before each decision.
func newReplay(jobs []Job, limits floor.Limits, timing Timing, adjust func(*floor.Facts)) *replay {
	r := &replay{limits: limits, timing: timing, adjust: adjust, jobs: jobs, runs: make([]run, len(jobs))}
	const day = 24 * time.Hour
	r.begin = jobs[0].QueuedAt.Truncate(day)
	lastDay := jobs[len(jobs)-1].QueuedAt.Truncate(day).Add(day)
	for now, queued := r.begin, 0; ; {
		for ; queued < len(jobs) && !jobs[queued].QueuedAt.After(now); queued++ {
			r.waiting = append(r.waiting, queued)
		}
		if r.step(now) == 0 && !now.Before(lastDay) {
			r.end = now
			return r
		}
		next := now.Add(resync)
		if queued < len(jobs) && jobs[queued].QueuedAt.Before(next) {
			next = jobs[queued].QueuedAt
		}
		for _, l := range r.live {
			if t := l.next(now); !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		now = next
	}
}

// step applies the decisions at a time, and returns the number of jobs that wait or run.
func (r *replay) step(now time.Time) int {
	facts := floor.Facts{Now: now, Limits: r.limits}
	r.live = slices.DeleteFunc(r.live, func(l *lease) bool { return l.ended(now) })
	for _, l := range r.live {
		l.advance(now, r.timing.Boot)
		facts.Leases = append(facts.Leases, l.facts(now))
	}
	for _, j := range r.waiting {
		facts.Waiting = append(facts.Waiting, strconv.Itoa(j))
	}
	demand := facts.Demand()
	facts.Sustained = r.history.Record(now, demand, r.limits.GrowAfter)
	facts.Expected = r.history.Expected(now)
	r.adjust(&facts)
	for _, d := range floor.Decide(facts) {
		r.apply(now, d)
	}
	return demand
}

func (r *replay) apply(now time.Time, d floor.Decision) {
	switch d.Action {
	case floor.Place:
		j := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.lease(d.Lease).run(now, r.jobs[j].Duration)
		r.runs[j] = run{r.jobs[j].QueuedAt, now, now.Add(r.jobs[j].Duration)}
	case floor.Grow:
		l := newLease(len(r.leases), now.Add(r.timing.Bind), r.limits.PerLease, r.timing.Boot)
		r.leases, r.live = append(r.leases, l), append(r.live, l)
	case floor.ReleaseAtFloor, floor.ReleaseNow:
		r.lease(d.Lease).delete(now)
	}
}

func (r *replay) lease(name string) *lease {
	for _, l := range r.live {
		if l.name == name {
			return l
		}
	}
	panic("no lease " + name)
}

// paid returns the time for which Macs are paid.
func (r *replay) paid() time.Duration {
	var paid time.Duration
	for _, l := range r.leases {
		paid += l.paid(r.end)
	}
	return paid
}
