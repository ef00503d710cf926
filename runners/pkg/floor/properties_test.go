package floor

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// anyFacts draws facts of every kind, also those that no set should reach.
func anyFacts(t *rapid.T) Facts {
	duration := func(name string, limit time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(limit/time.Minute)).Draw(t, name)) * time.Minute
	}
	number := func(name string, limit int) int { return rapid.IntRange(0, limit).Draw(t, name) }
	f := Facts{Now: now, Sustained: number("sustained", 12), Expected: number("expected", 12)}
	f.Limits = Limits{
		Min: number("min", 3), PerLease: 1 + number("perLease", 1), Warm: number("warm", 3), GrowAfter: time.Minute,
		KeepIdle: duration("keepIdle", 4*time.Hour), DecideBefore: duration("decideBefore", time.Hour),
	}
	f.Limits.Steady = rapid.Bool().Draw(t, "steady")
	f.Limits.Max = f.Limits.Min + number("max", 5)
	f.Unknown = rapid.Bool().Draw(t, "unknown")
	for i := range number("waiting", 10) {
		f.Waiting = append(f.Waiting, strconv.Itoa(i))
	}
	for i := range number("leases", 8) {
		l := Lease{Name: "lease-" + strconv.Itoa(i), Phase: rapid.SampledFrom([]Phase{Pending, Bound, Ending}).Draw(t, "phase")}
		if l.Phase != Pending {
			l.Floor = now.Add(duration("floor", 48*time.Hour) - 24*time.Hour)
			l.IdleSince = now.Add(-duration("idle", 24*time.Hour))
			l.Busy = number("busy", f.Limits.PerLease)
			l.Ready = number("ready", f.Limits.PerLease-l.Busy)
			l.Offline = rapid.Bool().Draw(t, "offline")
		} else if rapid.Bool().Draw(t, "refused") {
			l.Refusal = "NoMacAvailable"
		}
		f.Leases = append(f.Leases, l)
	}
	if rapid.Bool().Draw(t, "quota") {
		f.Refused = rapid.SampledFrom([]Reason{QuotaExceeded, LeaseRefused}).Draw(t, "reason")
	}
	return f
}

// outcome is what decisions make of the leases.
type outcome struct {
	created, deleted int
	jobs             map[string]int // jobs placed, by lease
	placed           []string
}

func outcomeOf(decisions []Decision) outcome {
	o := outcome{jobs: map[string]int{}}
	for _, d := range decisions {
		switch d.Action {
		case Grow:
			o.created++
		case Place:
			o.jobs[d.Lease]++
			o.placed = append(o.placed, d.Job)
		case ReleaseAtFloor, ReleaseNow:
			o.deleted++
		}
	}
	return o
}

func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFacts(t)
		before := slices.Clone(f.Leases)
		decisions := Decide(f)
		require.Equal(t, before, f.Leases, "the facts are not changed")
		require.Equal(t, decisions, Decide(f), "the same facts have the same decisions")

		o := outcomeOf(decisions)
		if o.created > 0 {
			require.LessOrEqual(t, len(f.Leases)+o.created, f.Limits.Max, "no growth above the maximum")
		}
		live, ready := 0, 0
		leases := map[string]Lease{}
		for _, l := range f.Leases {
			leases[l.Name] = l
			if l.Phase != Ending {
				live++
			}
			if l.Phase == Bound && !l.Offline {
				ready += l.Ready
			}
		}
		if f.Unknown {
			require.Zero(t, o.deleted, "no deletion while the jobs are unknown")
		}
		if o.deleted > 0 {
			require.GreaterOrEqual(t, live-o.deleted, f.Limits.Min, "no deletion below the minimum")
		}
		require.True(t, slices.Equal(f.Waiting[:min(ready, len(f.Waiting))], o.placed), "each booted machine gets a job, oldest first")
		for name, n := range o.jobs {
			require.LessOrEqual(t, n, leases[name].Ready)
		}

		perLease := map[string]int{}
		for _, d := range decisions {
			l := leases[d.Lease]
			if d.Lease != "" && d.Action != Place {
				perLease[d.Lease]++
			}
			switch d.Action {
			case ReleaseAtFloor:
				require.True(t, now.Before(l.Floor) && l.Floor.Sub(now) <= f.Limits.DecideBefore, "a deletion before the floor frees its money at once")
			case ReleaseNow:
				require.True(t, l.Phase == Pending || !now.Before(l.Floor), "a release at once is after the floor")
			}
			if d.Action == ReleaseAtFloor || d.Action == ReleaseNow {
				require.Zero(t, l.Busy+o.jobs[d.Lease], "no deletion ends a job")
				require.NotEqual(t, Ending, l.Phase, "no lease is deleted twice")
				require.True(t, l.Phase == Pending || now.Sub(l.IdleSince) >= f.Limits.KeepIdle, "a deleted lease was idle for keepIdle")
			}
			require.NotEmpty(t, reasons[d.Reason], "a text for %s", d.Reason)
		}
		require.Len(t, perLease, len(f.Leases), "one decision for each lease")
	})
}

// Unless demand rises, the deletion of capacity is not followed by a growth.
func TestDecideDoesNotOscillate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFacts(t)
		f.Sustained = min(f.Sustained, f.Demand())
		decisions := Decide(f)
		released, capacity := map[string]bool{}, false
		for _, d := range decisions {
			if d.Action == ReleaseAtFloor || d.Action == ReleaseNow {
				released[d.Lease] = true
				capacity = capacity || slices.ContainsFunc(f.Leases, func(l Lease) bool { return l.Name == d.Lease && l.usable() })
			}
		}
		if !capacity {
			return
		}
		o := outcomeOf(decisions)
		require.Zero(t, o.created, "no growth with a release")
		next := f
		next.Waiting = f.Waiting[len(o.placed):]
		next.Leases = nil
		for _, l := range f.Leases {
			if released[l.Name] {
				continue
			}
			l.Busy, l.Ready = l.Busy+o.jobs[l.Name], l.Ready-o.jobs[l.Name]
			next.Leases = append(next.Leases, l)
		}
		require.Zero(t, outcomeOf(Decide(next)).created, "no growth after a release")
	})
}
