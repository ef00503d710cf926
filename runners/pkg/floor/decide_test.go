package floor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

var limits = Limits{Max: 4, PerLease: 2, GrowAfter: time.Minute, KeepIdle: time.Hour, DecideBefore: 15 * time.Minute}

// lease returns a lease that has been idle for two hours, with its floor in the given time.
func lease(name string, floor time.Duration, changes ...func(*Lease)) Lease {
	l := Lease{Name: name, Phase: Bound, Floor: now.Add(floor), IdleSince: now.Add(-2 * time.Hour), Ready: 2}
	for _, change := range changes {
		change(&l)
	}
	return l
}

func busy(n int) func(*Lease)              { return func(l *Lease) { l.Busy, l.Ready = n, 2-n } }
func ready(n int) func(*Lease)             { return func(l *Lease) { l.Ready = n } }
func idleFor(d time.Duration) func(*Lease) { return func(l *Lease) { l.IdleSince = now.Add(-d) } }
func offline(l *Lease)                     { l.Offline = true }
func ending(l *Lease)                      { l.Phase = Ending }
func pending(name, refusal string) Lease   { return Lease{Name: name, Phase: Pending, Refusal: refusal} }
func with(change func(*Limits)) (l Limits) { l = limits; change(&l); return l }
func steady(n int) Limits                  { return with(func(l *Limits) { l.Warm, l.Steady = n, true }) }
func decision(a Action, r Reason, lease string) Decision {
	return Decision{Action: a, Reason: r, Lease: lease}
}

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name  string
		facts Facts
		want  []Decision // without Until and Detail
	}{
		{
			name: "nothing to do",
		},
		{
			name:  "an idle lease is kept while it is paid",
			facts: Facts{Leases: []Lease{lease("a", 16*time.Minute)}},
			want:  []Decision{decision(Keep, Paid, "a")},
		},
		{
			name:  "a surplus lease ends at its floor",
			facts: Facts{Leases: []Lease{lease("a", 15*time.Minute)}},
			want:  []Decision{decision(ReleaseAtFloor, Surplus, "a")},
		},
		{
			name:  "a surplus lease past its floor ends at once",
			facts: Facts{Leases: []Lease{lease("a", 0)}},
			want:  []Decision{decision(ReleaseNow, Surplus, "a")},
		},
		{
			name:  "a lease that was used within keepIdle is kept",
			facts: Facts{Leases: []Lease{lease("a", -time.Hour, idleFor(59*time.Minute))}},
			want:  []Decision{decision(Keep, RecentlyUsed, "a")},
		},
		{
			name:  "a lease that was idle for keepIdle is not kept",
			facts: Facts{Leases: []Lease{lease("a", -time.Hour, idleFor(time.Hour))}},
			want:  []Decision{decision(ReleaseNow, Surplus, "a")},
		},
		{
			name:  "a lease with a job is kept at its floor",
			facts: Facts{Leases: []Lease{lease("a", 0, busy(1))}},
			want:  []Decision{decision(Keep, Needed, "a")},
		},
		{
			name:  "a lease with a job that would fit on another lease is kept at its floor",
			facts: Facts{Leases: []Lease{lease("a", 0, busy(1)), lease("b", time.Hour, busy(1))}},
			want:  []Decision{decision(Keep, Paid, "b"), decision(Keep, Busy, "a")},
		},
		{
			name:  "a lease that gets a job is kept at its floor",
			facts: Facts{Waiting: []string{"j"}, Leases: []Lease{lease("a", 0)}},
			want: []Decision{
				{Action: Place, Reason: FreeMachine, Lease: "a", Job: "j"},
				decision(Keep, Needed, "a"),
			},
		},
		{
			name: "a booting lease that waiting jobs need is kept",
			facts: Facts{
				Waiting: []string{"j"},
				Leases:  []Lease{lease("a", 0, busy(2)), lease("b", 0, ready(0))},
			},
			want: []Decision{decision(Keep, Needed, "a"), decision(Keep, Needed, "b")},
		},
		{
			name:  "a lease that earlier days expect to be needed is kept",
			facts: Facts{Expected: 3, Leases: []Lease{lease("a", 0), lease("b", 0), lease("c", 0)}},
			want: []Decision{
				decision(Keep, ExpectedDemand, "a"), decision(Keep, ExpectedDemand, "b"), decision(ReleaseNow, Surplus, "c"),
			},
		},
		{
			name: "the minimum is kept, and made of paid leases",
			facts: Facts{
				Limits: with(func(l *Limits) { l.Min = 2 }),
				Leases: []Lease{lease("a", 0), lease("b", 20*time.Hour), lease("c", 10*time.Minute)},
			},
			want: []Decision{decision(Keep, Paid, "b"), decision(Keep, Minimum, "a"), decision(ReleaseAtFloor, Surplus, "c")},
		},
		{
			name:  "the minimum is leased without demand",
			facts: Facts{Limits: with(func(l *Limits) { l.Min = 2 }), Leases: []Lease{lease("a", 0, ending)}},
			want:  []Decision{decision(Grow, Minimum, ""), decision(Grow, Minimum, ""), decision(Keep, Deleted, "a")},
		},
		{
			name: "jobs run on the lease that is kept longest, oldest job first",
			facts: Facts{
				Waiting: []string{"j1", "j2", "j3"},
				Leases:  []Lease{lease("past", -time.Hour), lease("soon", time.Hour), lease("late", 20*time.Hour, busy(1))},
			},
			want: []Decision{
				{Action: Place, Reason: FreeMachine, Lease: "late", Job: "j1"},
				{Action: Place, Reason: FreeMachine, Lease: "soon", Job: "j2"},
				{Action: Place, Reason: FreeMachine, Lease: "soon", Job: "j3"},
				decision(Keep, Paid, "late"), decision(Keep, Paid, "soon"), decision(ReleaseNow, Surplus, "past"),
			},
		},
		{
			name: "past the floor, jobs run on the lease with the most jobs",
			facts: Facts{
				Waiting: []string{"j"},
				Leases:  []Lease{lease("a", -time.Hour), lease("b", -2*time.Hour, busy(1))},
			},
			want: []Decision{
				{Action: Place, Reason: FreeMachine, Lease: "b", Job: "j"},
				decision(Keep, Needed, "b"), decision(ReleaseNow, Surplus, "a"),
			},
		},
		{
			name: "no job runs on a deleted or an offline lease",
			facts: Facts{
				Waiting: []string{"j"},
				Leases:  []Lease{lease("a", time.Hour, ending), lease("b", time.Hour, offline)},
			},
			want: []Decision{decision(Keep, Paid, "b"), decision(Keep, Deleted, "a")},
		},
		{
			name:  "demand that has not lasted leases nothing",
			facts: Facts{Waiting: []string{"j"}},
		},
		{
			name:  "sustained demand leases as many Macs as it needs",
			facts: Facts{Waiting: []string{"j1", "j2", "j3"}, Sustained: 3},
			want:  []Decision{decision(Grow, SustainedDemand, ""), decision(Grow, SustainedDemand, "")},
		},
		{
			name: "pending and booting leases are capacity",
			facts: Facts{
				Waiting: []string{"j1", "j2", "j3"}, Sustained: 3,
				Leases: []Lease{pending("a", ""), lease("b", 24*time.Hour, ready(0))},
			},
			want: []Decision{decision(Keep, Paid, "b"), decision(Keep, Needed, "a")},
		},
		{
			name:  "an offline lease is no capacity",
			facts: Facts{Waiting: []string{"j"}, Sustained: 1, Leases: []Lease{lease("a", time.Hour, offline)}},
			want:  []Decision{decision(Grow, SustainedDemand, ""), decision(Keep, Paid, "a")},
		},
		{
			name:  "a job on an offline lease needs no other slot",
			facts: Facts{Expected: 5, Leases: []Lease{lease("a", time.Hour, busy(1), offline)}},
			want:  []Decision{decision(Keep, Paid, "a")},
		},
		{
			name: "a pending lease replaces an offline one",
			facts: Facts{
				Waiting: []string{"j"},
				Leases:  []Lease{lease("a", 0, offline, idleFor(time.Minute)), pending("b", "")},
			},
			want: []Decision{decision(Keep, Needed, "b"), decision(Keep, RecentlyUsed, "a")},
		},
		{
			name: "warm slots are leased while there is demand",
			facts: Facts{
				Limits: with(func(l *Limits) { l.Warm = 1 }), Sustained: 2,
				Leases: []Lease{lease("a", time.Hour, busy(2))},
			},
			want: []Decision{decision(Grow, SustainedDemand, ""), decision(Keep, Paid, "a")},
		},
		{
			name:  "warm slots keep no lease without demand",
			facts: Facts{Limits: with(func(l *Limits) { l.Warm = 1 }), Leases: []Lease{lease("a", 0)}},
			want:  []Decision{decision(ReleaseNow, Surplus, "a")},
		},
		{
			name: "expected demand leases at once what present demand confirms",
			facts: Facts{
				Waiting: []string{"j"}, Expected: 5,
				Leases: []Lease{lease("a", time.Hour, busy(2))},
			},
			want: []Decision{
				decision(Grow, ExpectedDemand, ""), decision(Grow, ExpectedDemand, ""), decision(Keep, Paid, "a"),
			},
		},
		{
			name:  "expected demand alone leases nothing",
			facts: Facts{Expected: 5, Leases: []Lease{lease("a", time.Hour, busy(2))}},
			want:  []Decision{decision(Keep, Paid, "a")},
		},
		{
			name: "the maximum counts deleted leases, and shows",
			facts: Facts{
				Waiting: []string{"j1", "j2", "j3"}, Sustained: 3, Limits: with(func(l *Limits) { l.Max = 2 }),
				Leases: []Lease{lease("a", time.Hour, ending)},
			},
			want: []Decision{decision(Grow, SustainedDemand, ""), decision(Wait, Maximum, ""), decision(Keep, Deleted, "a")},
		},
		{
			name:  "a refusal by a quota shows, and is not repeated",
			facts: Facts{Waiting: []string{"j"}, Sustained: 1, Refused: QuotaExceeded, RefusedDetail: "exceeded quota: macs"},
			want:  []Decision{decision(Wait, QuotaExceeded, "")},
		},
		{
			name: "a steady set leases Macs for its machines, and for no more",
			facts: Facts{
				Limits: steady(3), Sustained: 3, Waiting: []string{"j"},
				Leases: []Lease{lease("a", time.Hour, busy(2))},
			},
			want: []Decision{decision(Grow, SustainedDemand, ""), decision(Keep, Paid, "a")},
		},
		{
			name: "the other slots of a steady set are no demand",
			facts: Facts{
				Limits: steady(3), Sustained: 3,
				Leases: []Lease{lease("a", time.Hour, busy(2)), lease("b", time.Hour, busy(2))},
			},
			want: []Decision{decision(Keep, Paid, "a"), decision(Keep, Paid, "b")},
		},
		{
			name: "a steady set that has shrunk keeps a lease until its machines end",
			facts: Facts{
				Limits: steady(2), Sustained: 2,
				Leases: []Lease{lease("a", 0, busy(2)), lease("b", 0, busy(1)), lease("c", 0, ready(0))},
			},
			want: []Decision{decision(Keep, Needed, "a"), decision(Keep, Busy, "b"), decision(ReleaseNow, Surplus, "c")},
		},
		{
			name: "an empty pool shows, and no second lease waits for it",
			facts: Facts{
				Waiting: []string{"j1", "j2", "j3"}, Sustained: 3,
				Leases: []Lease{pending("a", "NoMacAvailable")},
			},
			want: []Decision{decision(Wait, NoMac, ""), decision(Keep, Needed, "a")},
		},
		{
			name:  "a lease without a Mac shows, also if no other one is needed",
			facts: Facts{Waiting: []string{"j"}, Sustained: 1, Leases: []Lease{pending("a", "NoMacAvailable")}},
			want:  []Decision{decision(Wait, NoMac, ""), decision(Keep, Needed, "a")},
		},
		{
			name:  "a lease without a Mac does not show if it is not needed",
			facts: Facts{Leases: []Lease{pending("a", "NoMacAvailable")}},
			want:  []Decision{decision(ReleaseNow, Surplus, "a")},
		},
		{
			name:  "no lease is deleted while the jobs are unknown",
			facts: Facts{Unknown: true, Leases: []Lease{pending("a", ""), lease("b", -time.Hour), lease("c", time.Hour)}},
			want:  []Decision{decision(Keep, Paid, "c"), decision(Keep, Unknown, "b"), decision(Keep, Unknown, "a")},
		},
		{
			name:  "a pending lease that is not needed any more is deleted before it costs anything",
			facts: Facts{Leases: []Lease{pending("a", "")}},
			want:  []Decision{decision(ReleaseNow, Surplus, "a")},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.facts.Now = now
			if test.facts.Limits == (Limits{}) {
				test.facts.Limits = limits
			}
			got := Decide(test.facts)
			for i := range got {
				got[i].Until, got[i].Detail = time.Time{}, ""
			}
			assert.Equal(t, test.want, got)
		})
	}
}

func TestDecisionsAreExplained(t *testing.T) {
	for want, d := range map[string]Decision{
		`Keep lease "a" until 2026-03-02T12:45:00Z: its Mac is paid for`: Decide(Facts{
			Now: now, Limits: limits, Leases: []Lease{lease("a", time.Hour)},
		})[0],
		`ReleaseAtFloor lease "a" until 2026-03-02T12:10:00Z: it was idle for keepIdle, and no demand is expected that needs it`: Decide(Facts{
			Now: now, Limits: limits, Leases: []Lease{lease("a", 10*time.Minute)},
		})[0],
		`Place job "j" lease "a": a booted machine is free`: Decide(Facts{
			Now: now, Limits: limits, Leases: []Lease{lease("a", time.Hour)}, Waiting: []string{"j"},
		})[0],
		`Wait: the quota of the namespace is exhausted; raise it, or lower max (exceeded quota: macs)`: Decide(Facts{
			Now: now, Limits: limits, Sustained: 1, Refused: QuotaExceeded, RefusedDetail: "exceeded quota: macs",
		})[0],
	} {
		assert.Equal(t, want, d.String())
	}
}
