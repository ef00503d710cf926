// Package controllers runs the controllers of MacRack: they bind leases to Macs, hold and release
// them, keep the taints of Nodes in step, create placeholder pods, and report which Macs are
// online. The registry checks each of their decisions, and they keep no state that cannot be read
// again, so they may be killed at any time.
package controllers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/controllers/certificates"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/macnode"
	"macrack.io/macrack/pkg/controllers/macnodeclass"
	"macrack.io/macrack/pkg/controllers/macnodelease"
	"macrack.io/macrack/pkg/controllers/macosimage"
	"macrack.io/macrack/pkg/controllers/macosinstance"
	"macrack.io/macrack/pkg/controllers/metrics"
	"macrack.io/macrack/pkg/controllers/node"
	"macrack.io/macrack/pkg/controllers/rackconfig"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	macrackscheme "macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

// Name is the name of the component, for example in Events.
const Name = "macrack-controllers"

// DefaultWorkers is the number of objects of one kind that are reconciled at a time. A reconcile
// mostly waits for the API servers.
const DefaultWorkers = 32

// Config is the configuration of the controllers.
type Config struct {
	// MacRack and Core are clients of the macrack.io API and of the Kubernetes API.
	MacRack versioned.Interface
	Core    kubernetes.Interface
	// Events writes Events; Core by default. With a separate client, a flood of Events does not
	// delay other requests.
	Events corev1client.EventsGetter
	// Recorder records Events; by default it writes them to Events.
	Recorder record.EventRecorder
	// Clock is the time; the real one by default. All floors and timers follow it; the backoff
	// after an error does not.
	Clock clock.WithDelayedExecution
	// Workers is the number of objects of one kind that are reconciled at a time; 32 by default.
	Workers int
}

// Manager runs the controllers.
type Manager struct {
	deps        *shared.Dependencies
	controllers []*controller.Controller
	metrics     *metrics.Collector
	workers     int
	broadcaster record.EventBroadcaster
	events      corev1client.EventsGetter
	started     atomic.Bool
	synced      atomic.Bool
}

// New returns a manager that is not running. It fails if a client is missing.
func New(config Config) (*Manager, error) {
	if config.MacRack == nil || config.Core == nil {
		return nil, errors.New("a client of the macrack.io API and a client of the Kubernetes API are required")
	}
	m := &Manager{workers: config.Workers, events: config.Events}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if m.workers <= 0 {
		m.workers = DefaultWorkers
	}
	if m.events == nil {
		m.events = config.Core.CoreV1()
	}
	if config.Recorder == nil {
		m.broadcaster = record.NewBroadcaster()
		config.Recorder = m.broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: Name})
	}
	deps, err := shared.New(config.MacRack, config.Core, config.Clock, config.Recorder)
	if err != nil {
		return nil, err
	}
	m.deps = deps
	m.metrics = metrics.New(deps)
	joins, err := certificates.New(deps)
	if err != nil {
		return nil, err
	}
	m.controllers = append(macnodelease.New(deps),
		node.New(deps),
		macosinstance.New(deps),
		macnode.New(deps),
		macnodeclass.New(deps),
		macosimage.New(deps),
		rackconfig.New(deps),
		joins,
		certificates.NewMacs(deps),
	)
	return m, nil
}

// eventScheme returns a scheme with all kinds that have Events.
func eventScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(macrackscheme.AddToScheme(s))
	return s
}

// A Lead calls work while this process may work: at once if it is alone, or whenever it is elected.
type Lead func(ctx context.Context, work func(context.Context) error) error

// Alone is the Lead of a process without rivals.
func Alone(ctx context.Context, work func(context.Context) error) error { return work(ctx) }

// Run fills the caches and then works when lead says so, until ctx is done. A process that waits
// for its election keeps its caches current, so it can take over at once. Run returns when the
// controllers have finished their current objects. It fails if ctx ends before the caches have
// synced. A manager runs once.
func (m *Manager) Run(ctx context.Context, lead Lead) error {
	if m.started.Swap(true) {
		return errors.New("the manager has already run; create a new one")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Informers stop last: a reconciliation that is ending may still read from them.
	defer m.deps.Wait()
	defer cancel()
	if err := m.deps.Start(ctx); err != nil {
		return err
	}
	m.synced.Store(true)
	defer m.synced.Store(false)
	klog.FromContext(ctx).Info("Caches synced")
	return lead(ctx, m.work)
}

// work runs the controllers until ctx is done. Only now are Events sent: the handlers of a waiting
// process record the same Events as those of the leader.
func (m *Manager) work(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting controllers", "controllers", len(m.controllers))
	defer logger.Info("Controllers stopped")
	if m.broadcaster != nil {
		m.broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: m.events.Events("")})
		defer m.broadcaster.Shutdown()
	}
	m.metrics.SetLeading(true)
	defer m.metrics.SetLeading(false)
	var wg sync.WaitGroup
	for _, c := range m.controllers {
		wg.Go(func() { c.Run(ctx, m.workers) })
	}
	wg.Wait()
	return nil
}

// Metrics returns the metrics of the fleet, for a registry.
func (m *Manager) Metrics() *metrics.Collector { return m.metrics }

// Synced reports whether the caches have synced.
func (m *Manager) Synced() bool { return m.synced.Load() }
