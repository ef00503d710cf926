package floor

import "time"

const (
	// lookAhead is the time for which an expected demand keeps an idle Mac. Within it, the idle Mac
	// is cheaper than a lease of 24 hours later.
	lookAhead = 4 * time.Hour
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

// Record records the demand, and returns the number below which it has not fallen for growAfter.
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

// Expected returns the highest demand that is expected within the next four hours. If the demand of
// the last two hours is lower than usual, as on a holiday, the expectation is lower in proportion.
func (h *History) Expected(now time.Time) int {
	expected := h.usual(now, now.Add(lookAhead))
	before, actual := h.usual(now.Add(-lookBack), now.Add(-bucket)), h.peak(now.Add(-lookBack), now)
	if actual+tolerance < before {
		return expected * actual / before
	}
	return expected
}

// usual returns the highest demand from one time to another that two earlier days agree on: the
// lower one of those of a day and a week ago. In the first week, that of two days ago stands in for
// the latter; on the second day, there is only one.
func (h *History) usual(from, to time.Time) int {
	yesterday := h.peak(from.Add(-day), to.Add(-day))
	for _, ago := range []time.Duration{week, 2 * day} {
		if number(from.Add(-ago)) >= h.first {
			return min(yesterday, h.peak(from.Add(-ago), to.Add(-ago)))
		}
	}
	return yesterday
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
