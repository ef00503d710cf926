package floor

import "time"

const (
	// lookAhead is the time for which an expected demand keeps an idle Mac: a quarter of the
	// shortest lease. Within it, the idle Mac is cheaper than another lease later.
	lookAhead = 6 * time.Hour
	// lookBack is the time over which the demand of earlier days is compared with the present one,
	// and tolerance the number of jobs by which it may have been higher.
	lookBack  = 2 * time.Hour
	tolerance = 4

	// bucket is the resolution of the memory.
	bucket = 15 * time.Minute
	day    = 24 * time.Hour
	week   = 7 * day
)

// History remembers the demand of the last eight days. Its zero value is empty and expects no
// demand; the rule then leases Macs later and gives them up sooner.
type History struct {
	// recent are the changes of demand within growAfter, and the last one before them.
	recent []sample
	// peaks are the highest sustained demands, by the number of the bucket.
	peaks map[int64]int
	// first is the number of the first bucket.
	first int64
}

// sample is the number of jobs from a time on.
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
		sustained = jobs
		for _, s := range h.recent {
			sustained = min(sustained, s.jobs)
		}
	}
	if h.peaks == nil {
		h.peaks, h.first = map[int64]int{}, number(now)
	}
	h.peaks[number(now)] = max(h.peaks[number(now)], sustained)
	delete(h.peaks, number(now.Add(-week-day)))
	return sustained
}

// Expected returns the highest demand that is expected within the next six hours. It is the demand
// of a week ago, or of a day ago in the first week. If the demand of the last two hours is lower
// than it was then, as on a holiday, the expectation is lower in proportion.
func (h *History) Expected(now time.Time) int {
	ago := week
	if number(now.Add(-week)) < h.first {
		ago = day
	}
	then := now.Add(-ago)
	expected := h.peak(then, then.Add(lookAhead))
	before, actual := h.peak(then.Add(-lookBack), then.Add(-bucket)), h.peak(now.Add(-lookBack), now)
	if actual+tolerance < before {
		return expected * actual / before
	}
	return expected
}

// peak returns the highest demand from one time to another.
func (h *History) peak(from, to time.Time) int {
	peak := 0
	for n := number(from); n <= number(to); n++ {
		peak = max(peak, h.peaks[n])
	}
	return peak
}

// number returns the number of the bucket of a time, counted from 1970.
func number(t time.Time) int64 { return t.Unix() / int64(bucket.Seconds()) }
