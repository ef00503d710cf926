package compliancereport

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

// gauges returns the values of a metric by the values of its labels.
func gauges(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			key := ""
			for _, label := range m.GetLabel() {
				key += label.GetValue() + " "
			}
			values[key] = m.GetGauge().GetValue()
		}
	}
	return values
}

func TestLastVerdict(t *testing.T) {
	b := newBook(t)
	timer := testingclock.NewFakeClock(now)
	rest := NewREST(testingclock.NewFakePassiveClock(now), b)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		rest.run(ctx, timer)
	}()
	elapse := func(d time.Duration) {
		require.Eventually(t, timer.HasWaiters, time.Minute, time.Millisecond)
		timer.Step(d)
		require.Eventually(t, timer.HasWaiters, time.Minute, time.Millisecond)
	}
	elapse(firstVerdict)
	verdicts := gauges(t, "macrack_compliance_verdict")
	assert.Len(t, verdicts, 12, "four windows, three verdicts")
	assert.Equal(t, 1.0, verdicts["Compliant 24h "])
	assert.Equal(t, 0.0, verdicts["Violated 24h "])
	assert.Equal(t, float64(now.Unix()), gauges(t, "macrack_compliance_report_timestamp_seconds")["90d "])

	b.records = b.records[:1] // an attacker removes the last record
	elapse(verdictInterval)
	verdicts = gauges(t, "macrack_compliance_verdict")
	assert.Equal(t, 0.0, verdicts["Compliant 24h "])
	assert.Equal(t, 1.0, verdicts["Incomplete 24h "])

	_, err := rest.Get(ctx, "2026-08-01..2026-09-01", &metav1.GetOptions{})
	require.NoError(t, err)
	assert.Len(t, gauges(t, "macrack_compliance_verdict"), 12, "users cannot add series")
	cancel()
	<-ended
	observe("24h", rack.ComplianceReportStatus{Verdict: rack.ComplianceCompliant}, now)
}
