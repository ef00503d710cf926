package auditrecord

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var reported = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace:      "macrack",
	Subsystem:      "compliance",
	Name:           "reported_records_total",
	Help:           "Number of records in compliance reports: read and proved by the report (read), or by an earlier one and unchanged in etcd since (remembered).",
	StabilityLevel: metrics.ALPHA,
}, []string{"source"})

func init() { legacyregistry.MustRegister(reported) }

// countReported counts the records of a report.
func countReported(read, remembered int64) {
	reported.WithLabelValues("read").Add(float64(read))
	reported.WithLabelValues("remembered").Add(float64(remembered))
}
