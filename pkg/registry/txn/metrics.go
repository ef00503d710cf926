package txn

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	conflicts = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "macrack",
		Subsystem:      "txn",
		Name:           "conflicts_total",
		Help:           "Number of transactions that did not commit because something they depended on had changed, by resource of the main object. The write is then planned again.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource"})

	undecodable = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "macrack",
		Subsystem:      "storage",
		Name:           "undecodable_objects_total",
		Help:           "Number of stored objects that could not be decoded and that lists and watches leave out, by resource. Each revision of an object counts once in a server.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource"})

	retries = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "macrack",
		Subsystem:      "txn",
		Name:           "retries",
		Help:           "Number of times a planned write was tried again; 0 if it was committed or refused at once.",
		Buckets:        []float64{0, 1, 2, 3, 5, 8, 13, 21, 40},
		StabilityLevel: metrics.ALPHA,
	})

	duration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace:      "macrack",
		Subsystem:      "txn",
		Name:           "duration_seconds",
		Help:           "Duration of planned writes in seconds, with all reads, retries and waiting, by resource of the main object and operation.",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 15),
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource", "operation"})
)

func init() {
	legacyregistry.MustRegister(conflicts, undecodable, retries, duration)
}
