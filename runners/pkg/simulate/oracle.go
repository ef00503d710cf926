package simulate

import (
	"slices"
	"time"
)

// oracle returns the least time for which Macs must be paid to run each job exactly when it ran in
// the given replay. It knows the jobs in advance, so its Macs are bound and its machines booted in
// time. A Mac needs a slot for each job from the boot of its machine to its end. Jobs may move
// between Macs, so the result is a lower bound for every policy with the same waits.
//
// It is a flow of minimal cost. Each unit of flow is a Mac that the tenant may lease; it moves
// through time on one of two lines, and through blocks between them:
//
//	unleased line: free of charge; capacity: all Macs less those that jobs need at the time
//	block:         from the unleased line to the leased line 24 hours later; costs 24 hours
//	leased line:   past the floor; costs its length; back to the unleased line at any time
func oracle(r *replay) time.Duration {
	need := r.need()
	macs := 0
	for _, n := range need {
		macs = max(macs, n.macs)
	}
	times := make([]time.Time, 0, 2*len(need)+1)
	for i, n := range need {
		times = append(times, n.from)
		if i == 0 || n.macs > need[i-1].macs {
			times = append(times, n.from.Add(minimumDuration))
		}
	}
	times = append(times, r.end)
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	end, _ := slices.BinarySearchFunc(times, r.end, time.Time.Compare)
	times = times[:end+1]

	unleased := func(i int) int { return 2 * i }
	leased := func(i int) int { return 2*i + 1 }
	g := newGraph(2 * len(times))
	k := 0
	for i, at := range times {
		g.add(leased(i), unleased(i), macs, 0)
		if i == end {
			break
		}
		for k+1 < len(need) && !need[k+1].from.After(at) {
			k++
		}
		g.add(unleased(i), unleased(i+1), macs-need[k].macs, 0)
		g.add(leased(i), leased(i+1), macs, times[i+1].Sub(at))
		if need[k].from.Equal(at) && (k == 0 || need[k].macs > need[k-1].macs) {
			j, _ := slices.BinarySearchFunc(times, at.Add(minimumDuration), time.Time.Compare)
			g.add(unleased(i), leased(min(j, end)), macs, minimumDuration)
		}
	}
	return g.minCost(unleased(0), unleased(end), macs)
}

// need is a number of Macs that jobs need from a time on.
type need struct {
	from time.Time
	macs int
}

// need returns the number of Macs that the jobs of the replay need, in the order of time. Each step
// differs from the one before it.
func (r *replay) need() []need {
	type change struct {
		at    time.Time
		slots int
	}
	minimumFrom := r.begin.Add(r.timing.Bind)
	changes := []change{{minimumFrom, 0}}
	for _, j := range r.runs {
		changes = append(changes, change{j.start.Add(-r.timing.Boot), 1}, change{j.end, -1})
	}
	slices.SortFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	steps := []need{{r.begin, 0}}
	slots := 0
	for i, c := range changes {
		slots += c.slots
		if i+1 < len(changes) && changes[i+1].at.Equal(c.at) {
			continue
		}
		macs := (slots + r.limits.PerLease - 1) / r.limits.PerLease
		if !c.at.Before(minimumFrom) {
			macs = max(macs, r.limits.Min)
		}
		switch last := &steps[len(steps)-1]; {
		case c.at.Equal(last.from):
			last.macs = macs
		case macs != last.macs:
			steps = append(steps, need{c.at, macs})
		}
	}
	return steps
}
