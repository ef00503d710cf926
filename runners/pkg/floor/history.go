package floor

import (
	"slices"
	"time"
)

// bucket is the resolution of the memory of demand.
const bucket = 15 * time.Minute

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// History remembers the demand of the last eight days. Its zero value is empty. An empty history
// expects no demand, so the rule is then merely slower to lease Macs and quicker to give them up.
type History struct {
	// recent are the changes of demand of the last GrowAfter, and the one before them.
	recent []sample
	// peaks are the highest sustained demands, by the number of the bucket since 1970.
	peaks map[int64]int
	first int64
}

type sample struct {
	at   time.Time
	jobs int
}

// Record records the number of jobs, running and waiting, and returns the number below which it has
// not fallen for growAfter.
func (h *History) Record(now time.Time, jobs int, growAfter time.Duration) (sustained int) {
	if n := len(h.recent); n == 0 || h.recent[n-1].jobs != jobs {
		h.recent = append(h.recent, sample{now, jobs})
	}
	start := now.Add(-growAfter)
	for len(h.recent) > 1 && !h.recent[1].at.After(start) {
		h.recent = h.recent[1:]
	}
	if !h.recent[0].at.After(start) {
		sustained = slices.MinFunc(h.recent, func(a, b sample) int { return a.jobs - b.jobs }).jobs
	}
	h.remember(now, sustained)
	return sustained
}

func (h *History) remember(now time.Time, jobs int) {
	n := number(now)
	if h.peaks == nil {
		h.peaks, h.first = map[int64]int{}, n
	}
	h.peaks[n] = max(h.peaks[n], jobs)
	delete(h.peaks, number(now.Add(-week-day)))
}

// Expected returns the highest demand that is expected within the given time. It is the demand of a
// week ago, or of a day ago in the first week. If the demand since the same time before now was
// lower than it was then, the expectation is lower in proportion.
func (h *History) Expected(now time.Time, within time.Duration) int {
	ago := week
	if number(now.Add(-week)) < h.first {
		ago = day
	}
	then := now.Add(-ago)
	expected := h.peak(then, then.Add(within))
	before, actual := h.peak(then.Add(-within), then.Add(-bucket)), h.peak(now.Add(-within), now)
	if actual < before {
		expected = expected * actual / before
	}
	return expected
}

// peak returns the highest demand of the buckets from one time to another.
func (h *History) peak(from, to time.Time) int {
	peak := 0
	for n := number(from); n <= number(to); n++ {
		peak = max(peak, h.peaks[n])
	}
	return peak
}

// number returns the number of the bucket of a time.
func number(t time.Time) int64 { return t.Unix() / int64(bucket.Seconds()) }
