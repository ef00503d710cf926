// Package controllers runs the controllers of MacRack: they bind leases to Macs, hold and release them, keep the
// taints of Nodes in step, make placeholder pods, and tell which Macs are heard of. They decide nothing that the
// registry does not check, and keep nothing that cannot be read again: any of them may be killed at any time.
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
	"macrack.io/macrack/pkg/controllers/env"
	"macrack.io/macrack/pkg/controllers/macnode"
	"macrack.io/macrack/pkg/controllers/macnodeclass"
	"macrack.io/macrack/pkg/controllers/macnodelease"
	"macrack.io/macrack/pkg/controllers/macosimage"
	"macrack.io/macrack/pkg/controllers/macosinstance"
	"macrack.io/macrack/pkg/controllers/node"
	"macrack.io/macrack/pkg/controllers/runner"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	macrackscheme "macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

// Name is the name of the component, in Events and elsewhere.
const Name = "macrack-controllers"

// defaultWorkers is how many objects of one kind are reconciled at a time.
const defaultWorkers = 5

// Config is what the controllers need.
type Config struct {
	// MacRack and Core are clients of the macrack.io API and of the cluster's own.
	MacRack versioned.Interface
	Core    kubernetes.Interface
	// Events is where Events are written to; Core by default. A client of its own keeps a flood of Events from
	// holding up the rest.
	Events corev1client.EventsGetter
	// Recorder takes Events; by default they are written to Events.
	Recorder record.EventRecorder
	// Clock is the time; the real one by default. All floors and timers follow it. Waiting after an error does not.
	Clock clock.WithDelayedExecution
	// Workers is how many objects of one kind are reconciled at a time; 5 by default.
	Workers int
}

// Manager runs the controllers.
type Manager struct {
	env         *env.Env
	controllers []*runner.Controller
	workers     int
	broadcaster record.EventBroadcaster
	events      corev1client.EventsGetter
	started     atomic.Bool
	synced      atomic.Bool
}

// New returns a manager that is not running. It fails if a client is missing.
func New(config Config) (*Manager, error) {
	if config.MacRack == nil || config.Core == nil {
		return nil, errors.New("the controllers need a client of the macrack.io API and one of the cluster's own")
	}
	m := &Manager{workers: config.Workers, events: config.Events}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if m.workers <= 0 {
		m.workers = defaultWorkers
	}
	if m.events == nil {
		m.events = config.Core.CoreV1()
	}
	if config.Recorder == nil {
		m.broadcaster = record.NewBroadcaster()
		config.Recorder = m.broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: Name})
	}
	e, err := env.New(config.MacRack, config.Core, config.Clock, config.Recorder)
	if err != nil {
		return nil, err
	}
	m.env = e
	joins, err := certificates.New(e)
	if err != nil {
		return nil, err
	}
	m.controllers = append(macnodelease.New(e),
		node.New(e),
		macosinstance.New(e),
		macnode.New(e),
		macnodeclass.New(e),
		macosimage.New(e),
		joins,
		certificates.NewMacs(e),
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

// Run runs the controllers until ctx is done, and returns when all of them have finished what they were at. It
// fails if ctx ends before the state of the cluster could be read. A manager runs once.
func (m *Manager) Run(ctx context.Context) error {
	if m.started.Swap(true) {
		return errors.New("the controllers have run already: make new ones")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.broadcaster != nil {
		m.broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: m.events.Events("")})
		defer m.broadcaster.Shutdown()
	}
	logger := klog.FromContext(ctx)
	logger.Info("Starting the controllers", "controllers", len(m.controllers))
	defer logger.Info("The controllers have stopped")

	// Informers stop last: what is being finished may still look something up.
	defer m.env.Wait()
	defer cancel()
	if err := m.env.Start(ctx); err != nil {
		return err
	}
	m.synced.Store(true)
	defer m.synced.Store(false)
	logger.Info("The controllers have read what there is")

	var wg sync.WaitGroup
	for _, c := range m.controllers {
		wg.Go(func() { c.Run(ctx, m.workers) })
	}
	wg.Wait()
	return nil
}

// Synced says whether the controllers run and have read what there is.
func (m *Manager) Synced() bool { return m.synced.Load() }
