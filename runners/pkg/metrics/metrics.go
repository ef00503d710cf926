// Package metrics has the metrics of macrack-runners.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
)

// Metrics are the metrics of all sets.
type Metrics struct {
	jobs      *prometheus.GaugeVec
	finished  *prometheus.CounterVec
	started   *prometheus.HistogramVec
	leases    *prometheus.GaugeVec
	machines  *prometheus.GaugeVec
	paid      *prometheus.CounterVec
	busy      *prometheus.CounterVec
	decisions *prometheus.GaugeVec
	sourceUp  *prometheus.GaugeVec
	paused    *prometheus.GaugeVec
	stalled   *prometheus.GaugeVec
	// Errors counts failed actions.
	Errors *prometheus.CounterVec
	// Leader is 1 while this process leads.
	Leader prometheus.Gauge
	// ConfigValid is 1 while the file of the configuration is valid.
	ConfigValid prometheus.Gauge
}

// New returns the metrics, registered.
func New(registerer prometheus.Registerer) *Metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "macrack_runners_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "macrack_runners_" + name, Help: help}, labels)
	}
	m := &Metrics{
		jobs:     gauge("jobs", "Jobs by state: waiting for a machine, or running on one.", "set", "state"),
		finished: counter("jobs_finished_total", "Jobs that have ended, by result.", "set", "result"),
		started: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "macrack_runners_job_start_seconds", Help: "Time from the queueing of a job to its start.",
			Buckets: []float64{0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
		}, []string{"set"}),
		leases:    gauge("leases", "Leases by phase.", "set", "phase"),
		machines:  gauge("machines", "Virtual machines by state.", "set", "state"),
		paid:      counter("paid_chassis_seconds_total", "Time for which Macs were leased.", "set"),
		busy:      counter("busy_chassis_seconds_total", "Time for which Macs ran jobs; a job takes the share of its slot.", "set"),
		decisions: gauge("decisions", "Current decisions about leases, by action and reason.", "set", "action", "reason"),
		sourceUp:  gauge("source_up", "1 while the source of the jobs is reachable, by the reason if not.", "set", "reason"),
		paused:    gauge("machines_paused", "1 while no machines are created, by the reason.", "set", "reason"),
		stalled:   gauge("machines_stalled", "Virtual machines that cannot start without intervention, by the reason.", "set", "reason"),
		Errors:    counter("errors_total", "Failed actions; they are repeated.", "set", "action"),
		Leader:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "macrack_runners_leader", Help: "1 while this process leads."}),
		ConfigValid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "macrack_runners_config_valid", Help: "1 if the file of the configuration was valid when it was last read.",
		}),
	}
	registerer.MustRegister(m.jobs, m.finished, m.started, m.leases, m.machines, m.paid, m.busy, m.decisions, m.sourceUp, m.paused, m.stalled,
		m.Errors, m.Leader, m.ConfigValid)
	return m
}

// Facts publishes the facts about a set, and counts the time since the last ones. An empty reason
// of paused means that machines are created.
func (m *Metrics) Facts(set string, facts floor.Facts, all []machines.Machine, since time.Duration, paused string) {
	states := map[machines.State]int{}
	m.stalled.DeletePartialMatch(prometheus.Labels{"set": set})
	for _, machine := range all {
		states[machine.State]++
		if machine.Stalled != "" {
			m.stalled.WithLabelValues(set, machine.Stalled).Inc()
		}
	}
	for _, state := range []machines.State{machines.Booting, machines.Warm, machines.Busy, machines.Done, machines.Deleting} {
		m.machines.WithLabelValues(set, string(state)).Set(float64(states[state]))
	}
	phases, busy := map[floor.Phase]int{}, 0
	for _, lease := range facts.Leases {
		phases[lease.Phase]++
		busy += lease.Busy
	}
	for _, phase := range []floor.Phase{floor.Pending, floor.Bound, floor.Ending} {
		m.leases.WithLabelValues(set, string(phase)).Set(float64(phases[phase]))
	}
	m.jobs.WithLabelValues(set, "waiting").Set(float64(len(facts.Waiting)))
	m.jobs.WithLabelValues(set, "running").Set(float64(states[machines.Busy]))
	m.paid.WithLabelValues(set).Add(since.Seconds() * float64(phases[floor.Bound]+phases[floor.Ending]))
	m.busy.WithLabelValues(set).Add(since.Seconds() * float64(busy) / float64(facts.Limits.PerLease))
	m.paused.DeletePartialMatch(prometheus.Labels{"set": set})
	m.paused.WithLabelValues(set, paused).Set(boolean(paused != ""))
}

// Decide publishes the current decisions about the leases of a set.
func (m *Metrics) Decide(set string, decisions []floor.Decision) {
	m.decisions.DeletePartialMatch(prometheus.Labels{"set": set})
	for _, d := range decisions {
		if d.Action != floor.Place {
			m.decisions.WithLabelValues(set, string(d.Action), string(d.Reason)).Inc()
		}
	}
}

// JobStarted counts the wait of a job.
func (m *Metrics) JobStarted(set string, wait time.Duration) {
	m.started.WithLabelValues(set).Observe(max(wait, 0).Seconds())
}

// JobFinished counts a job.
func (m *Metrics) JobFinished(set, result string) { m.finished.WithLabelValues(set, result).Inc() }

// Source publishes whether the source of a set is reachable: an empty reason means that it is.
func (m *Metrics) Source(set, reason string) {
	m.sourceUp.DeletePartialMatch(prometheus.Labels{"set": set})
	m.sourceUp.WithLabelValues(set, reason).Set(boolean(reason == ""))
}

// Forget removes the gauges of a set that has no leases and machines anymore.
func (m *Metrics) Forget(set string) {
	for _, vec := range []*prometheus.GaugeVec{m.jobs, m.leases, m.machines, m.decisions, m.sourceUp, m.paused, m.stalled} {
		vec.DeletePartialMatch(prometheus.Labels{"set": set})
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Finished returns the counter of jobs that have ended.
func (m *Metrics) Finished() *prometheus.CounterVec { return m.finished }
