package sets

import (
	"context"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/floor"
)

// reload is the interval at which the configuration is read.
const reload = 5 * time.Second

// Manager runs all sets of the configuration, and those that were removed from it until their last
// lease has ended.
type Manager struct {
	Environment
	// Cache is the Reader of the Environment, which wakes the sets.
	Cache *Cache
	// Load returns the current configuration.
	Load func() (*config.RunnersConfiguration, error)
	// Source returns the source of a set.
	Source func(*config.Set) Source

	running map[string]*running
}

// running is a set that runs.
type running struct {
	set     *Set
	history *floor.History
	stop    func()
}

// Run runs the sets until ctx ends. An invalid configuration changes nothing.
func (m *Manager) Run(ctx context.Context) error {
	m.running = map[string]*running{}
	if err := m.Cache.Start(ctx); err != nil {
		return err
	}
	defer func() {
		for name := range m.running {
			m.stop(name)
		}
	}()
	loaded := ""
	for {
		current, err := m.Load()
		switch {
		case err == nil:
			m.Metrics.ConfigValid.Set(1)
			loaded = ""
			m.apply(ctx, current)
		case err.Error() != loaded:
			loaded = err.Error()
			m.Metrics.ConfigValid.Set(0)
			m.Events.Event(m.Self, "Warning", "InvalidConfiguration", loaded)
			klog.ErrorS(err, "Invalid configuration; the last valid one stays in effect")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.Clock.After(reload):
		}
	}
}

// apply starts, restarts and drains sets.
func (m *Manager) apply(ctx context.Context, current *config.RunnersConfiguration) {
	configured := map[string]bool{}
	for i := range current.Sets {
		set := &current.Sets[i]
		configured[set.Name] = true
		if r := m.running[set.Name]; r == nil || r.set.draining() || !reflect.DeepEqual(r.set.config, set) {
			m.start(ctx, set, m.Source(set))
		}
	}
	left := m.Cache.Sets()
	for name := range left {
		if r := m.running[name]; !configured[name] && (r == nil || !r.set.draining()) {
			drained := config.Drained(name)
			if r != nil {
				drained.Instances.Timeout = r.set.config.Instances.Timeout
			}
			m.start(ctx, drained, None{})
		}
	}
	for name := range m.running {
		if !configured[name] && !left[name] {
			m.stop(name)
			m.Metrics.Forget(name)
		}
	}
}

func (m *Manager) start(ctx context.Context, set *config.Set, source Source) {
	history := &floor.History{}
	if r := m.running[set.Name]; r != nil {
		history = r.history
		m.stop(set.Name)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running{set: New(m.Environment, set, source, history), history: history}
	ended := make(chan struct{})
	r.stop = func() { cancel(); <-ended }
	m.Cache.watch(set.Name, r.set)
	m.running[set.Name] = r
	klog.InfoS("Set started", "set", set.Name, "draining", r.set.draining())
	go func() {
		defer close(ended)
		r.set.Run(ctx)
	}()
}

func (m *Manager) stop(name string) {
	m.running[name].stop()
	m.Cache.watch(name, nil)
	delete(m.running, name)
	klog.InfoS("Set stopped", "set", name)
}

// Self returns the object that stands for macrack-runners in events: the Lease of its leadership.
func Self(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}
}
