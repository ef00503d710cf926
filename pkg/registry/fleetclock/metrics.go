package fleetclock

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var skew = metrics.NewGauge(&metrics.GaugeOpts{
	Namespace:      "macrack",
	Name:           "replica_clock_skew_seconds",
	Help:           "Largest difference between the clock of this replica and the last reading of another replica. Up to 5 seconds are normal, because replicas write their times every 5 seconds; above 10 seconds, no Mac is leased.",
	StabilityLevel: metrics.ALPHA,
})

func init() { legacyregistry.MustRegister(skew) }
