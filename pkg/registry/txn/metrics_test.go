package txn_test

import (
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
)

// metric returns the sum of a metric, which for a histogram is how many were
// observed, over all its series with a label.
func metric(t testing.TB, name, label, value string) (n float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := label == ""
			for _, l := range m.GetLabel() {
				match = match || l.GetName() == label && l.GetValue() == value
			}
			if match {
				n += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

// conflicts returns how many conflicts all servers of this process have met.
func conflicts(t testing.TB) float64 {
	return metric(t, "macrack_txn_conflicts_total", "", "")
}

// The clients of planned and of stock stores count in the same metrics.
func TestClientMetrics(t *testing.T) {
	_, servers := newLease(t, 1)
	count := func() float64 { return metric(t, "grpc_client_started_total", "grpc_method", "Txn") }
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease")) // has to look for the chain
	before := count()
	mustCreate(t, ctx, servers[0].Instances, instance("b", "lease"))
	if got := count() - before; got != 1 {
		t.Errorf("a create made %v transactions", got)
	}
}

func TestMetrics(t *testing.T) {
	_, servers := newLease(t, 1)
	tries := metric(t, "macrack_txn_retries", "", "")
	creates := metric(t, "macrack_txn_duration_seconds", "resource", "instances.toy.example")
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
	if got := metric(t, "macrack_txn_retries", "", "") - tries; got != 1 {
		t.Errorf("%v retries observed", got)
	}
	if got := metric(t, "macrack_txn_duration_seconds", "resource", "instances.toy.example") - creates; got != 1 {
		t.Errorf("%v durations observed", got)
	}
}
