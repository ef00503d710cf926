package simulate

import (
	"cmp"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"macrack.io/macrack/runners/pkg/floor"
)

var (
	testLimits = floor.Limits{Max: 3, PerLease: 2, GrowAfter: 5 * time.Minute, KeepIdle: time.Hour, DecideBefore: 15 * time.Minute}
	testTiming = Timing{Bind: 2 * time.Minute, Boot: time.Minute}
	asIs       = func(*floor.Facts) {}
)

func at(hours float64) time.Time { return monday.Add(time.Duration(hours * float64(time.Hour))) }

func TestReplayOfOneJob(t *testing.T) {
	r := newReplay([]Job{{at(9), time.Hour}}, testLimits, testTiming, asIs)
	started := at(9).Add(8 * time.Minute) // growAfter, bind, boot
	assert.Equal(t, []run{{at(9), started, started.Add(time.Hour)}}, r.runs)
	require.Len(t, r.leases, 1)
	assert.Equal(t, at(9).Add(7*time.Minute), r.leases[0].boundAt)
	assert.Equal(t, minimumDuration, r.paid())
}

func TestReplayPastTheFloor(t *testing.T) {
	// The second job runs from 8:30 to 10:30; the floor is at 9:07.
	jobs := []Job{{at(9), time.Hour}, {at(24 + 8.5), 2 * time.Hour}, {at(60), time.Minute}}
	r := newReplay(jobs, testLimits, testTiming, asIs)
	require.Len(t, r.leases, 2)
	assert.Equal(t, at(24+11.5), r.leases[0].endsAt, "idle for keepIdle")
	assert.Zero(t, r.runs[1].start.Sub(r.runs[1].queued), "a machine was ready")
}

func TestReplayProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var jobs []Job
		for range rapid.IntRange(1, 60).Draw(t, "jobs") {
			jobs = append(jobs, Job{
				QueuedAt: monday.Add(time.Duration(rapid.IntRange(0, 3*24*60).Draw(t, "queued")) * time.Minute),
				Duration: time.Duration(rapid.IntRange(1, 300).Draw(t, "length")) * time.Minute,
			})
		}
		slices.SortStableFunc(jobs, func(a, b Job) int { return a.QueuedAt.Compare(b.QueuedAt) })
		limits := testLimits
		limits.Min = rapid.IntRange(0, 2).Draw(t, "min")
		limits.Max = max(1, limits.Min+rapid.IntRange(0, 3).Draw(t, "max"))
		limits.PerLease = rapid.IntRange(1, 2).Draw(t, "perLease")
		limits.Warm = rapid.IntRange(0, 2).Draw(t, "warm")
		atDeletion := -1 // demand at the last deletion
		r := newReplay(jobs, limits, testTiming, func(f *floor.Facts) {
			for _, d := range floor.Decide(*f) {
				switch d.Action {
				case floor.Grow:
					require.True(t, d.Reason == floor.Minimum || f.Demand() > atDeletion, "no growth after a deletion unless demand rose")
				case floor.ReleaseAtFloor, floor.ReleaseNow:
					atDeletion = f.Demand()
				}
			}
		})

		for i, j := range r.runs {
			require.False(t, j.start.Before(jobs[i].QueuedAt), "each job runs")
			require.Equal(t, jobs[i].Duration, j.end.Sub(j.start), "no job is cut")
		}
		require.LessOrEqual(t, atOnce(r.leases, func(l *lease) (time.Time, time.Time) { return l.boundAt, l.endOr(r.end) }), limits.Max)
		for _, l := range r.leases {
			if l.deleted && !l.endsAt.Before(l.boundAt) {
				require.GreaterOrEqual(t, l.endsAt.Sub(l.boundAt), minimumDuration, "no release before the floor")
			}
		}
		require.LessOrEqual(t, oracle(r), r.paid(), "the oracle is a lower bound")
	})
}

// endOr returns the end of the lease, or the given time if it has none.
func (l *lease) endOr(end time.Time) time.Time {
	if l.deleted {
		return l.endsAt
	}
	return end
}

// atOnce returns the highest number of leases that have a Mac at once.
func atOnce(leases []*lease, span func(*lease) (from, to time.Time)) int {
	type change struct {
		at time.Time
		n  int
	}
	var changes []change
	for _, l := range leases {
		if from, to := span(l); from.Before(to) {
			changes = append(changes, change{from, 1}, change{to, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.n, b.n)) })
	highest, n := 0, 0
	for _, c := range changes {
		n += c.n
		highest = max(highest, n)
	}
	return highest
}

// The bursts of spikes come at random times. The best rule for them releases each idle Mac at its
// floor; it knows nothing of the future, so none costs much less.
func TestRandomBursts(t *testing.T) {
	file, err := os.Open("../../traces/spikes.csv")
	require.NoError(t, err)
	defer file.Close()
	jobs, err := ReadTrace(file)
	require.NoError(t, err)
	limits := floor.Limits{Max: 8, PerLease: 2, Warm: 1, GrowAfter: time.Minute, KeepIdle: 30 * time.Minute, DecideBefore: 15 * time.Minute}
	rule := newReplay(jobs, limits, testTiming, asIs)
	atFloor := newReplay(jobs, limits, testTiming, func(f *floor.Facts) { f.Limits.KeepIdle, f.Expected = 0, 0 })
	t.Logf("floor rule: %.1f days; release at the floor: %.1f days", rule.paid().Hours()/24, atFloor.paid().Hours()/24)
	assert.LessOrEqual(t, rule.paid().Hours(), 1.02*atFloor.paid().Hours())
}
