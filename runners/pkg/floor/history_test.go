package floor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// record records a demand for each minute from one time to another.
func record(h *History, from, to time.Time, jobs func(time.Time) int) {
	for at := from; at.Before(to); at = at.Add(time.Minute) {
		h.Record(at, jobs(at), time.Minute)
	}
}

func TestSustainedDemand(t *testing.T) {
	h := History{}
	for _, step := range []struct {
		minute, jobs, want int
	}{
		{0, 4, 0}, // not known for growAfter
		{4, 4, 0},
		{5, 4, 4},
		{6, 9, 4},
		{8, 7, 4},
		{10, 7, 4},
		{11, 8, 7}, // 9 since minute 6, 7 since minute 8
		{12, 2, 2},
		{13, 8, 2},
		{17, 8, 2},
		{18, 8, 8},
	} {
		got := h.Record(now.Add(time.Duration(step.minute)*time.Minute), step.jobs, 5*time.Minute)
		assert.Equal(t, step.want, got, "minute %d", step.minute)
	}
}

func TestExpectedDemand(t *testing.T) {
	monday := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name string
		days string // x for each day with 8 jobs from 9 to 12 o'clock
		at   time.Duration
		want int
	}{
		{"nothing on the first day", "x", 8 * time.Hour, 0},
		{"as on the first day", "xx", day + 8*time.Hour, 8},
		{"four hours ahead", "xx", day + 5*time.Hour, 8},
		{"no more than four hours ahead", "xx", day + 4*time.Hour, 0},
		{"not after the demand", "xx", day + 13*time.Hour, 0},
		{"before the second day contradicts it", "x.", day + 9*time.Hour, 8},
		{"until the second day contradicts it", "x.", day + 10*time.Hour, 0},
		{"as on two days", "xxx", 2*day + 8*time.Hour, 8},
		{"two days disagree", "x.x", 2*day + 8*time.Hour, 0},
		{"on a Saturday, in the first week", "xxxxx.", 5*day + 8*time.Hour, 8},
		{"on a Sunday", "xxxxx..", 6*day + 8*time.Hour, 0},
		{"on a Tuesday, as a week ago", "xxxxx..xx", 8*day + 8*time.Hour, 8},
		{"on a Saturday, as a week ago", "xxxxx..xxxxx.", 12*day + 8*time.Hour, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, now := History{}, monday.Add(test.at)
			record(&h, monday, now, func(at time.Time) int {
				if test.days[at.Sub(monday)/day] == 'x' && at.Hour() >= 9 && at.Hour() < 12 {
					return 8
				}
				return 0
			})
			assert.Equal(t, test.want, h.Expected(now))
		})
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := History{}
	record(&h, now, now.AddDate(0, 0, 30), func(at time.Time) int { return at.Minute() })
	assert.LessOrEqual(t, len(h.peaks), 8*24*4+1)
	assert.LessOrEqual(t, len(h.recent), 3)
}
