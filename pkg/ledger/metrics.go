package ledger

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// noRule is the rule of a refused instance that broke none of the three.
const noRule = "None"

var rejectionsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace:      "macrack",
	Name:           "rejections_total",
	Help:           "Number of recorded rejections, folded ones included, by rule of the licence and by layer: Registry, Scheduler, Agent or Kernel. Rule None is a refused instance that broke none of the three rules.",
	StabilityLevel: metrics.ALPHA,
}, []string{"rule", "layer"})

func init() {
	legacyregistry.MustRegister(rejectionsTotal)
	// Without zeros, the first rejection of its kind would not be an increase.
	for _, rule := range []string{string(rules.TwoVMsPerChassis), string(rules.OneTenantPerChassis), string(rules.TwentyFourHours), noRule} {
		for _, layer := range []rack.AuditLayer{rack.LayerRegistry, rack.LayerScheduler, rack.LayerAgent, rack.LayerKernel} {
			rejectionsTotal.WithLabelValues(rule, string(layer))
		}
	}
}

// ruleOf returns the rule that a rejection belongs to. The sum of the three rules is the number of
// rejections in a report. The agent and the scheduler choose the reasons of their rejections, so
// unknown reasons belong to rule 1, which decides about the start of virtual machines.
func ruleOf(record *rack.AuditRecord) string {
	switch record.Type {
	case rack.CrossTenantRejected:
		return string(rules.OneTenantPerChassis)
	case rack.FloorTamperRejected:
		return string(rules.TwentyFourHours)
	}
	switch reason := record.Details.Reason; {
	case !rules.IsRuleReason(reason):
		return noRule
	case reason == "ForeignPod", reason == "MacIsNotLeased", reason == "LeaseOfEarlierNamespace":
		return string(rules.OneTenantPerChassis)
	}
	return string(rules.TwoVMsPerChassis)
}

// layerOf returns the layer of a rejection. Records without one are of the registry.
func layerOf(record *rack.AuditRecord) string {
	switch layer := record.Details.Layer; layer {
	case rack.LayerScheduler, rack.LayerAgent, rack.LayerKernel:
		return string(layer)
	}
	return string(rack.LayerRegistry)
}
