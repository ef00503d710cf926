// Package traces has the synthetic traces of jobs that the floor rule is measured with, and their
// generator.
package traces

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"macrack.io/macrack/runners/pkg/simulate"
)

// Names are the names of the traces, in the order of the report.
var Names = []string{"office-hours", "spikes", "nightly"}

// start is the Monday on which each trace begins; each has days days.
var start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

const (
	day  = 24 * time.Hour
	days = 14
)

// officeRates are the jobs per hour on a working day, for each hour of the day.
var officeRates = []float64{
	0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.5, 2, 6, 18, 30, 32, 16, 22, 32, 34, 28, 16, 6, 2, 1, 0.5, 0.5, 0.3,
}

// Generate returns the trace with the given name. It is the same at each call.
func Generate(name string) []simulate.Job { return generate(name, 2026) }

// generate returns another trace for each seed.
func generate(name string, seed uint64) []simulate.Job {
	g := generator{Rand: rand.New(rand.NewPCG(seed, uint64(len(name))))}
	switch name {
	case "office-hours":
		g.officeHours()
	case "spikes":
		g.spikes()
	case "nightly":
		g.nightly()
	}
	slices.SortStableFunc(g.jobs, func(a, b simulate.Job) int { return a.QueuedAt.Compare(b.QueuedAt) })
	return g.jobs
}

type generator struct {
	*rand.Rand
	jobs []simulate.Job
}

// officeHours has the working days of a team of about 40 people, and quiet weekends.
func (g *generator) officeHours() {
	for d := range days {
		for h, rate := range officeRates {
			if d%7 >= 5 {
				rate = 0.3
			}
			g.arrivals(start.Add(time.Duration(d)*day+time.Duration(h)*time.Hour), time.Hour, rate, 12*time.Minute, 0.6)
		}
	}
}

// spikes has a few jobs at all hours, and twice a day, at random times, a burst of dozens.
func (g *generator) spikes() {
	g.arrivals(start, days*day, 4*24*days, 12*time.Minute, 0.6)
	for _, at := range g.times(start, days*day, 2*days) {
		g.arrivals(at, 10*time.Minute, 12+24*g.Float64(), 20*time.Minute, 0.4)
	}
}

// nightly has a batch of 64 jobs at 01:00 each night, and a few jobs by day.
func (g *generator) nightly() {
	for d := range days {
		midnight := start.Add(time.Duration(d) * day)
		for range 64 {
			g.add(midnight.Add(time.Hour+time.Duration(g.Float64()*float64(5*time.Minute))), 25*time.Minute, 0.3)
		}
		g.arrivals(midnight.Add(8*time.Hour), 10*time.Hour, 20, 12*time.Minute, 0.6)
	}
}

// arrivals adds jobs at random times; mean is their expected number.
func (g *generator) arrivals(from time.Time, length time.Duration, mean float64, median time.Duration, sigma float64) {
	for _, at := range g.times(from, length, mean) {
		g.add(at, median, sigma)
	}
}

// times returns the times of a Poisson process with an expected number of events.
func (g *generator) times(from time.Time, length time.Duration, mean float64) []time.Time {
	var times []time.Time
	for at := g.ExpFloat64() / mean; at < 1; at += g.ExpFloat64() / mean {
		times = append(times, from.Add(time.Duration(at*float64(length))))
	}
	return times
}

// add adds a job whose duration has a log-normal distribution, between 1 and 90 minutes.
func (g *generator) add(at time.Time, median time.Duration, sigma float64) {
	duration := time.Duration(float64(median) * math.Exp(sigma*g.NormFloat64()))
	duration = min(max(duration, time.Minute), 90*time.Minute)
	g.jobs = append(g.jobs, simulate.Job{QueuedAt: at.Truncate(time.Second), Duration: duration.Truncate(time.Second)})
}
