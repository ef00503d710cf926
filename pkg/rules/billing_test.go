package rules

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLeaseUse(t *testing.T) {
	at := func(s string) time.Time {
		parsed, err := time.Parse("2006-01-02T15:04:05", s)
		require.NoError(t, err)
		return parsed
	}
	const day = 24 * time.Hour
	noon := at("2026-11-10T12:00:00")
	november, december := at("2026-11-01T00:00:00"), at("2026-12-01T00:00:00")
	lasting := func(bound time.Time, minimum, deleted, released time.Duration) LeaseTimes {
		times := LeaseTimes{BoundAt: bound, Floor: bound.Add(minimum)}
		if deleted > 0 {
			times.DeletedAt = bound.Add(deleted)
		}
		if released > 0 {
			times.ReleasedAt = bound.Add(released)
		}
		return times
	}
	for name, test := range map[string]struct {
		times    LeaseTimes
		from, to time.Time
		want     LeaseUse
	}{
		"released at its floor":       {lasting(noon, day, day, day), november, december, LeaseUse{1, day, 0}},
		"held for 23 hours":           {lasting(noon, day, time.Hour, day), november, december, LeaseUse{1, day, 23 * time.Hour}},
		"held, and scrubbed for 2h":   {lasting(noon, day, time.Hour, 26*time.Hour), november, december, LeaseUse{1, 26 * time.Hour, 23 * time.Hour}},
		"held, scrubbed until window": {lasting(noon, day, time.Hour, 30*day), at("2026-11-20T00:00:00"), december, LeaseUse{0, december.Sub(at("2026-11-20T00:00:00")), 0}},
		"held, not released yet":      {lasting(noon, day, time.Hour, 0), november, noon.Add(30 * time.Hour), LeaseUse{1, 30 * time.Hour, 23 * time.Hour}},
		"held, before its floor":      {lasting(noon, day, time.Hour, 0), november, noon.Add(2 * time.Hour), LeaseUse{1, 2 * time.Hour, time.Hour}},
		"deleted after its floor":     {lasting(noon, day, 25*time.Hour, 26*time.Hour), november, december, LeaseUse{2, 26 * time.Hour, 0}},
		"one second into day 3":       {lasting(noon, day, 2*day+time.Second, 3*day), november, december, LeaseUse{3, 3 * day, 0}},
		"exactly two days":            {lasting(noon, day, 2*day, 3*day), november, december, LeaseUse{2, 3 * day, 0}},
		"lengthened to three days":    {lasting(noon, 3*day, time.Hour, 3*day), november, december, LeaseUse{3, 3 * day, 3*day - time.Hour}},
		"released without deletion":   {lasting(noon, day, 0, 25*time.Hour), november, december, LeaseUse{2, 25 * time.Hour, 0}},
		"running":                     {lasting(noon, day, 0, 0), november, noon.Add(49 * time.Hour), LeaseUse{3, 49 * time.Hour, 0}},
		"running, just bound":         {lasting(noon, day, 0, 0), november, noon.Add(time.Second), LeaseUse{1, time.Second, 0}},
		"bound at the window's end":   {lasting(noon, day, 0, 0), november, noon, LeaseUse{}},
		"bound at its beginning":      {lasting(november, day, day, day), november, december, LeaseUse{1, day, 0}},
		"released before the floor":   {lasting(noon, day, time.Hour, 2*time.Hour), november, december, LeaseUse{1, 2 * time.Hour, time.Hour}},
		"... lengthened":              {lasting(noon, 2*day, time.Hour, 2*time.Hour), november, december, LeaseUse{2, 2 * time.Hour, time.Hour}},
		"over a month's end":          {lasting(at("2026-11-30T18:00:00"), day, day, day), november, december, LeaseUse{1, 6 * time.Hour, 0}},
		"the next month":              {lasting(at("2026-11-30T18:00:00"), day, day, day), december, at("2027-01-01T00:00:00"), LeaseUse{0, 18 * time.Hour, 0}},
		"two days over its end":       {lasting(at("2026-11-30T18:00:00"), 2*day, 2*day, 2*day), december, at("2027-01-01T00:00:00"), LeaseUse{1, 42 * time.Hour, 0}},
		"a leap day":                  {lasting(at("2028-02-28T12:00:00"), 2*day, 2*day, 2*day), at("2028-02-29T00:00:00"), at("2028-03-01T00:00:00"), LeaseUse{1, day, 0}},
		"a leap year":                 {lasting(at("2028-01-01T00:00:00"), 366*day, 366*day, 366*day), at("2028-01-01T00:00:00"), at("2029-01-01T00:00:00"), LeaseUse{366, 366 * day, 0}},
		"an earlier window":           {lasting(noon, day, day, day), at("2026-10-01T00:00:00"), november, LeaseUse{}},
		"a later window":              {lasting(noon, day, day, day), december, at("2027-01-01T00:00:00"), LeaseUse{}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, test.times.Use(test.from, test.to))
		})
	}
}

// A period has 24 hours on days that have 23 or 25 in local time.
func TestLeaseUseIgnoresDaylightSaving(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	summer := time.FixedZone("CEST", 2*3600)
	bound := time.Date(2026, 3, 28, 12, 0, 0, 0, berlin)
	deleted := time.Date(2026, 3, 29, 12, 0, 0, 0, summer) // 23 hours later
	times := LeaseTimes{BoundAt: bound, Floor: bound.Add(24 * time.Hour), DeletedAt: deleted, ReleasedAt: bound.Add(24 * time.Hour)}
	use := times.Use(bound, bound.Add(72*time.Hour))
	assert.Equal(t, LeaseUse{Days: 1, Chassis: 24 * time.Hour, Held: time.Hour}, use)
}

// The uses in consecutive windows add up to the use in all of them, whatever the lease and wherever
// the windows meet.
func TestLeaseUsesAddUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	seconds := func(limit time.Duration) time.Duration {
		return time.Duration(random.Int64N(int64(limit/time.Second))) * time.Second
	}
	start := time.Date(2028, 2, 27, 0, 0, 0, 0, time.UTC)
	for range 20_000 {
		times := LeaseTimes{BoundAt: start.Add(seconds(96 * time.Hour))}
		times.Floor = times.BoundAt.Add(24*time.Hour + seconds(72*time.Hour))
		if random.IntN(3) > 0 {
			times.DeletedAt = times.BoundAt.Add(seconds(200 * time.Hour))
		}
		if random.IntN(3) > 0 {
			times.ReleasedAt = times.BoundAt.Add(seconds(200 * time.Hour))
		}
		ends := []time.Time{start.Add(-time.Hour)}
		for len(ends) < 8 {
			step := seconds(48 * time.Hour)
			if random.IntN(4) == 0 { // a window that ends exactly with a period
				step = times.BoundAt.Sub(ends[len(ends)-1]) % BillingPeriod
			}
			ends = append(ends, ends[len(ends)-1].Add(max(0, step)))
		}
		var sum LeaseUse
		for i := range ends[1:] {
			use := times.Use(ends[i], ends[i+1])
			sum.Days, sum.Chassis, sum.Held = sum.Days+use.Days, sum.Chassis+use.Chassis, sum.Held+use.Held
		}
		whole := times.Use(ends[0], ends[len(ends)-1])
		require.Equal(t, whole, sum, "%+v %v", times, ends)
		if until := times.BillableUntil(); !until.IsZero() && !until.After(ends[len(ends)-1]) {
			require.GreaterOrEqual(t, whole.Days, int64(1), "the floor is billed: %+v", times)
			require.Less(t, until.Sub(times.BoundAt.Add(time.Duration(whole.Days-1)*BillingPeriod)), BillingPeriod+1)
		}
	}
}
