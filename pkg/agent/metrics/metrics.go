// Package metrics has the metrics of one Mac: its slots, its disk, its images, and the certificates
// of its agent. They are read at each scrape.
package metrics

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/certificatemetrics"
	"macrack.io/macrack/pkg/rules"
)

// maxScrapes is the number of scrapes that are answered at a time.
const maxScrapes = 4

// Results of a pull.
const (
	pulled = "Success"
	failed = "Failure"
)

var slotPhases = []slots.Phase{
	slots.Free, slots.Preparing, slots.Prepared, slots.Launching, slots.Attached, slots.Unreachable, slots.Exited, slots.Corrupt,
}

func describe(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc("macrack_agent_"+name, help, labels, nil, metrics.ALPHA, "")
}

// Sources are the sources of the metrics.
type Sources struct {
	Slots func() [rules.MaxVMsPerMac]slots.Status
	// Images returns the images on the disk.
	Images func() ([]images.Cached, error)
	// Dir is a directory on the disk of the Mac.
	Dir string
	// Certificates are the agent's certificates, by purpose.
	Certificates map[string]certificatemetrics.Source
}

// Metrics are the metrics of an agent.
type Metrics struct {
	registry metrics.KubeRegistry
	pulls    *metrics.HistogramVec
}

// New returns the metrics of an agent. Those of the Mac follow with Register.
func New() *Metrics {
	m := &Metrics{
		registry: metrics.NewKubeRegistry(),
		pulls: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace:      "macrack",
			Subsystem:      "agent",
			Name:           "image_pull_duration_seconds",
			Help:           "Duration of the pulls of images, prefetched ones included, by result: Success or Failure. An interrupted pull resumes where it ended.",
			Buckets:        []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
	}
	m.registry.MustRegister(m.pulls)
	for _, result := range []string{pulled, failed} {
		m.pulls.WithLabelValues(result)
	}
	return m
}

// Register adds the metrics of the Mac. It must be called once.
func (m *Metrics) Register(sources Sources) {
	m.registry.CustomMustRegister(&collector{Sources: sources}, certificatemetrics.New(sources.Certificates))
}

// Handler serves the metrics, with those of the process.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError})
}

// Gatherer returns the metrics, with those of the process.
func (m *Metrics) Gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
}

// Store returns store with metrics of its pulls.
func (m *Metrics) Store(store images.Store, clock clock.PassiveClock) images.Store {
	return meteredStore{store, m.pulls, clock}
}

type meteredStore struct {
	images.Store
	pulls *metrics.HistogramVec
	clock clock.PassiveClock
}

// Ensure implements [images.Store]. An image that the store has already is no pull.
func (s meteredStore) Ensure(ctx context.Context, image images.Image, needs images.Needs) (images.Cached, error) {
	began, pulling, onEvent := s.clock.Now(), false, needs.OnEvent
	needs.OnEvent = func(e images.Event) {
		pulling = pulling || e.Reason == images.EventPulling
		if onEvent != nil {
			onEvent(e)
		}
	}
	cached, err := s.Store.Ensure(ctx, image, needs)
	took := s.clock.Since(began).Seconds()
	switch {
	case err == nil && pulling:
		s.pulls.WithLabelValues(pulled).Observe(took)
	case err != nil && ctx.Err() == nil: // not because the instance was stopped
		s.pulls.WithLabelValues(failed).Observe(took)
	}
	return cached, err
}

var (
	slotsDesc       = describe("slots", "Number of slots of the Mac, by phase.", "phase")
	storageFreeDesc = describe("storage_free_bytes", "Free storage of the disk of the Mac.")
	storageSizeDesc = describe("storage_size_bytes", "Size of the disk of the Mac.")
	imagesDesc      = describe("images", "Number of complete images on the Mac.")
	imagesBytesDesc = describe("images_bytes", "Storage that the complete images on the Mac take.")
)

type collector struct {
	metrics.BaseStableCollector
	Sources
}

// DescribeWithStability sends the descriptors of the metrics.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{slotsDesc, storageFreeDesc, storageSizeDesc, imagesDesc, imagesBytesDesc} {
		ch <- d
	}
}

// CollectWithStability sends the metrics. Those that cannot be read are left out.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	gauge := func(d *metrics.Desc, value float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, value, labels...)
	}
	byPhase := map[slots.Phase]int{}
	for _, slot := range c.Slots() {
		byPhase[slot.Phase]++
	}
	for _, phase := range slotPhases {
		gauge(slotsDesc, float64(byPhase[phase]), string(phase))
	}
	for d, read := range map[*metrics.Desc]func(string) (int64, error){storageFreeDesc: disk.Free, storageSizeDesc: disk.Size} {
		if n, err := read(c.Dir); err == nil {
			gauge(d, float64(n))
		} else {
			klog.ErrorS(err, "Failed to read the size of the disk for metrics", "dir", c.Dir)
		}
	}
	if cached, err := c.Images(); err == nil {
		var bytes int64
		for _, image := range cached {
			bytes += image.Bytes
		}
		gauge(imagesDesc, float64(len(cached)))
		gauge(imagesBytesDesc, float64(bytes))
	} else {
		klog.ErrorS(err, "Failed to list the images for metrics")
	}
}
