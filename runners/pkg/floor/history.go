package floor

import "time"

const (
	// lookAhead is the time for which the forecast keeps an idle Mac. Within it, the idle Mac is
	// cheaper than a lease of 24 hours later.
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
		h.peaks, h.first = map[int64]int{}, bucketOf(now)
	}
	h.peaks[bucketOf(now)] = max(h.peaks[bucketOf(now)], sustained)
	delete(h.peaks, bucketOf(now.Add(-week-day)))
	return sustained
}

// Expected returns the forecast: the highest expected demand of the next four hours. If the demand
// of the last two hours is lower than usual, as on a holiday, the forecast is lower in proportion.
func (h *History) Expected(now time.Time) int {
	expected := h.usual(now, now.Add(lookAhead))
	before, actual := h.usual(now.Add(-lookBack), now.Add(-bucket)), h.peak(now.Add(-lookBack), now)
	if actual+tolerance < before {
		return expected * actual / before
	}
	return expected
}

// usual returns the lower of the peaks a day and a week ago. In the first week it uses two days ago
// instead of a week; on the second day, only yesterday.
func (h *History) usual(from, to time.Time) int {
	yesterday := h.peak(from.Add(-day), to.Add(-day))
	for _, ago := range []time.Duration{week, 2 * day} {
		if bucketOf(from.Add(-ago)) >= h.first {
			return min(yesterday, h.peak(from.Add(-ago), to.Add(-ago)))
		}
	}
	return yesterday
}

// peak returns the highest demand from one time to another.
func (h *History) peak(from, to time.Time) int {
	peak := 0
	for n := bucketOf(from); n <= bucketOf(to); n++ {
		peak = max(peak, h.peaks[n])
	}
	return peak
}

// bucketOf returns the number of the bucket of a time, counted from 1970.
func bucketOf(t time.Time) int64 { return t.Unix() / int64(bucket.Seconds()) }
