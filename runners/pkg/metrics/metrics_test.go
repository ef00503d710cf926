package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
)

var (
	used = regexp.MustCompile(`macrack_runners_[a-z_]+`)
	by   = regexp.MustCompile(`by \(([a-z, ]+)\)`)
	word = regexp.MustCompile(`[a-z]+`)
)

// scrape returns the labels of all metrics, by the names of their series.
func scrape(t *testing.T) map[string]map[string]bool {
	t.Helper()
	registry := prometheus.NewRegistry()
	m := New(registry)
	facts := floor.Facts{Limits: floor.Limits{PerLease: 2}, Leases: []floor.Lease{{Name: "a", Phase: floor.Bound, Busy: 1}}}
	m.Facts("ios", facts, []machines.Machine{{State: machines.Busy}, {State: machines.Booting, Stalled: "ImageNotFound"}}, time.Minute, "")
	m.Decide("ios", []floor.Decision{{Action: floor.Keep, Reason: floor.Paid}})
	m.JobStarted("ios", time.Second)
	m.JobFinished("ios", "Succeeded")
	m.Source("ios", "Unauthorized")
	m.Errors.WithLabelValues("ios", "create lease").Inc()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]map[string]bool{}
	for _, family := range families {
		labels := map[string]bool{}
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels[pair.GetName()] = true
		}
		all[family.GetName()] = labels
		if family.GetMetric()[0].GetHistogram() != nil {
			labels["le"] = true
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				all[family.GetName()+suffix] = labels
			}
		}
	}
	return all
}

func TestTheDashboardUsesMetricsThatExist(t *testing.T) {
	all := scrape(t)
	text, err := os.ReadFile("../../../artifacts/charts/macrack-runners/dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	shown := map[string]bool{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			names := used.FindAllString(target.Expr, -1)
			require.NotEmpty(t, names, panel.Title)
			for _, name := range names {
				labels, found := all[name]
				assert.True(t, found, "%s: no metric %s", panel.Title, name)
				shown[name] = true
				for _, match := range by.FindAllStringSubmatch(target.Expr, -1) {
					for _, label := range word.FindAllString(match[1], -1) {
						assert.True(t, labels[label], "%s: %s has no label %s", panel.Title, name, label)
					}
				}
			}
		}
	}
	for name := range all {
		if _, histogram := all[name+"_bucket"]; !histogram && !regexp.MustCompile(`_(sum|count)$`).MatchString(name) {
			assert.True(t, shown[name], "the dashboard shows %s", name)
		}
	}
}

func TestTheDocumentListsAllMetrics(t *testing.T) {
	text, err := os.ReadFile("../../../docs/runners.md")
	require.NoError(t, err)
	all := scrape(t)
	listed := map[string]bool{}
	for _, name := range used.FindAllString(string(text), -1) {
		listed[name] = true
		assert.Contains(t, all, name)
	}
	for name := range all {
		if _, histogram := all[name+"_bucket"]; histogram || all[name]["le"] {
			continue
		}
		assert.True(t, listed[name], "docs/runners.md has %s", name)
	}
	assert.True(t, listed["macrack_runners_job_start_seconds"])
}

func TestPaidAndBusyTime(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	facts := floor.Facts{Limits: floor.Limits{PerLease: 2}, Leases: []floor.Lease{
		{Phase: floor.Pending}, {Phase: floor.Bound, Busy: 1}, {Phase: floor.Ending, Busy: 2},
	}}
	m.Facts("ios", facts, nil, time.Minute, "")
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		if counter := family.GetMetric()[0].GetCounter(); counter != nil {
			got[family.GetName()] = counter.GetValue()
		}
	}
	assert.Equal(t, map[string]float64{"macrack_runners_paid_chassis_seconds_total": 120, "macrack_runners_busy_chassis_seconds_total": 90}, got)
}
