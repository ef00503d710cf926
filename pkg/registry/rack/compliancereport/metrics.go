package compliancereport

import (
	"context"
	"slices"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

const (
	// firstVerdict is the time after the start of a server at which it computes the reports for
	// metrics, and verdictInterval the time between later ones. A report reads all records.
	firstVerdict    = time.Minute
	verdictInterval = time.Hour
)

var verdicts = []rack.ComplianceVerdict{rack.ComplianceCompliant, rack.ComplianceViolated, rack.ComplianceIncomplete}

var (
	verdict = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      "macrack",
		Subsystem:      "compliance",
		Name:           "verdict",
		Help:           "The last verdict that this replica has computed, by window: 1 for Compliant, Violated or Incomplete, and 0 for the others.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"window", "verdict"})

	computedAt = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      "macrack",
		Subsystem:      "compliance",
		Name:           "report_timestamp_seconds",
		Help:           "Time of the last report that this replica has computed, by window.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"window"})
)

func init() { legacyregistry.MustRegister(verdict, computedAt) }

// observe shows the verdict of a report on one of the usual windows. Users choose the other windows
// freely.
func observe(window string, status rack.ComplianceReportStatus, now time.Time) {
	if !slices.Contains(ledger.UsualWindows, window) {
		return
	}
	for _, v := range verdicts {
		value := 0.0
		if v == status.Verdict {
			value = 1
		}
		verdict.WithLabelValues(window, string(v)).Set(value)
	}
	computedAt.WithLabelValues(window).Set(float64(now.Unix()))
}

// Run computes the reports on the usual windows every hour until ctx is done, so that the metrics
// show a violation that no auditor has looked for.
func (r *REST) Run(ctx context.Context) { r.run(ctx, clock.RealClock{}) }

func (r *REST) run(ctx context.Context, timer clock.Clock) {
	wait := firstVerdict
	for {
		select {
		case <-timer.After(wait):
		case <-ctx.Done():
			return
		}
		if _, err := r.List(ctx, nil); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to compute the compliance reports for metrics")
		}
		wait = verdictInterval
	}
}
