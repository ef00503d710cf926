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

// morning is a demand of 8 jobs from 9 to 12 o'clock on the days before the given one.
func morning(last time.Time) func(time.Time) int {
	return func(at time.Time) int {
		if at.Before(last) && at.Hour() >= 9 && at.Hour() < 12 {
			return 8
		}
		return 0
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
	day := func(n int, hour time.Duration) time.Time { return monday.AddDate(0, 0, n).Add(hour * time.Hour) }
	for _, test := range []struct {
		name string
		at   time.Time
		last time.Time // day from which there is no demand
		want int
	}{
		{"nothing on the first day", day(0, 8), day(9, 0), 0},
		{"as yesterday", day(1, 8), day(9, 0), 8},
		{"six hours ahead", day(1, 3), day(9, 0), 8},
		{"no more than six hours ahead", day(1, 2), day(9, 0), 0},
		{"after the demand of yesterday", day(1, 13), day(9, 0), 0},
		{"as yesterday, before today contradicts it", day(1, 9), day(1, 0), 8},
		{"as yesterday, until today contradicts it", day(1, 10), day(1, 0), 0},
		{"as a week ago", day(7, 8), day(5, 0), 8},
		{"as a week ago and not as yesterday", day(8, 13), day(9, 0), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := History{}
			record(&h, monday, test.at, morning(test.last))
			assert.Equal(t, test.want, h.Expected(test.at))
		})
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := History{}
	record(&h, now, now.AddDate(0, 0, 30), func(at time.Time) int { return at.Minute() })
	assert.LessOrEqual(t, len(h.peaks), 8*24*4+1)
	assert.LessOrEqual(t, len(h.recent), 3)
}
