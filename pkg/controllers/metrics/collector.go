// Package metrics computes the metrics of the fleet from the caches of the controllers, at each
// scrape. Nothing is counted along the way, so no number can drift from the API. Only the leader
// has these metrics: sums over the replicas are not doubled.
package metrics

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
)

// other is the value of a label for values outside the fixed set.
const other = "Other"

// Collector has the metrics of the fleet.
type Collector struct {
	metrics.BaseStableCollector
	deps       *shared.Dependencies
	heartbeats *heartbeats
	leading    atomic.Bool
}

var _ metrics.StableCollector = &Collector{}

// New returns a collector that is not leading. It observes the informers of deps, so call it before
// they start.
func New(deps *shared.Dependencies) *Collector {
	c := &Collector{deps: deps, heartbeats: newHeartbeats(deps.Clock)}
	c.heartbeats.watch(deps.Heartbeats.Informer())
	c.observeDurations()
	return c
}

// SetLeading sets whether this process leads. Only a leader has metrics of the fleet.
func (c *Collector) SetLeading(leading bool) { c.leading.Store(leading) }

// DescribeWithStability sends the descriptors of all metrics.
func (c *Collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range descriptors {
		ch <- d
	}
}

// CollectWithStability computes the metrics and sends them.
func (c *Collector) CollectWithStability(ch chan<- metrics.Metric) {
	if !c.leading.Load() {
		return
	}
	fleet, err := c.list()
	if err != nil {
		klog.Background().Error(err, "Failed to list the fleet for metrics")
		return
	}
	send := sender(ch)
	fleet.collectMacs(send)
	fleet.collectLeases(send)
	fleet.collectInstances(send)
	for _, mac := range fleet.macs {
		fleet.collectMac(send, mac)
		if at, found := c.heartbeats.get(mac.Name); found {
			send.time(macHeartbeat, at, mac.Name)
		}
	}
}

// A fleet is the content of the caches at one scrape.
type fleet struct {
	classes   []string
	macs      []*rackv1alpha1.MacNode
	leases    []*rackv1alpha1.MacNodeLease
	instances []*instancev1alpha1.MacOSInstance
	// leaseOf returns the lease of a Mac, or nil.
	leaseOf func(*rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease
}

func (c *Collector) list() (*fleet, error) {
	f := &fleet{}
	classes, err := c.deps.MacNodeClasses.Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if f.macs, err = c.deps.MacNodes.Lister().List(labels.Everything()); err != nil {
		return nil, err
	}
	if f.leases, err = c.deps.MacNodeLeases.Lister().List(labels.Everything()); err != nil {
		return nil, err
	}
	if f.instances, err = c.deps.MacOSInstances.Lister().List(labels.Everything()); err != nil {
		return nil, err
	}
	for _, class := range classes {
		f.classes = append(f.classes, class.Name)
	}
	for _, mac := range f.macs {
		f.classes = append(f.classes, mac.Spec.ClassName)
	}
	slices.Sort(f.classes)
	f.classes = slices.Compact(f.classes)
	f.leaseOf = leasesByMac(f.leases)
	return f, nil
}

// sender sends gauges.
type sender chan<- metrics.Metric

func (s sender) gauge(d *metrics.Desc, value float64, labels ...string) {
	s <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, value, labels...)
}

func (s sender) time(d *metrics.Desc, t time.Time, labels ...string) {
	s.gauge(d, float64(t.UnixMilli())/1000, labels...)
}

// A count has a number for each pair of values of two labels.
type count map[[2]string]int

// send sends a number for each pair, zero included.
func (n count) send(s sender, d *metrics.Desc, first, second []string) {
	for _, a := range first {
		for _, b := range second {
			s.gauge(d, float64(n[[2]string{a, b}]), a, b)
		}
	}
}

// known returns value if it is in the fixed set, or Other.
func known(set []string, value string) string {
	if slices.Contains(set, value) {
		return value
	}
	return other
}

// An oldest has the earliest time for each key.
type oldest[K comparable] map[K]time.Time

func (o oldest[K]) add(key K, t time.Time) {
	if first, found := o[key]; !found || t.Before(first) {
		o[key] = t
	}
}
