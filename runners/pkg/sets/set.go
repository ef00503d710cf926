package sets

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
)

const (
	// pause is the least time between two reconciliations, and resync the most.
	pause  = 200 * time.Millisecond
	resync = 10 * time.Second
	// bootTimeout is the time in which the guest of a running virtual machine must answer.
	bootTimeout = 10 * time.Minute
	// startTimeout is the time in which the guest must accept its job.
	startTimeout = 5 * time.Minute
	// resultTimeout is the time for which the source may not know the result of a job that has
	// ended.
	resultTimeout = 15 * time.Second
	// forgetTimeout is the time for which the deletion of an instance waits for its source.
	forgetTimeout = 2 * time.Minute
	// unknownTimeout is the time for which a set without news of its source gives no lease up.
	unknownTimeout = 10 * time.Minute
	// callTimeout bounds one attempt to start or forget a job.
	callTimeout = time.Minute
)

// Reader returns the leases and instances of a set as they were last seen.
type Reader interface {
	Leases(set string) ([]*rackv1alpha1.MacNodeLease, error)
	Instances(set string) ([]*instancev1alpha1.MacOSInstance, error)
}

// Environment is what all sets share.
type Environment struct {
	// Namespace is the namespace of the leases and instances.
	Namespace string
	// MacRack is the client for leases and instances.
	MacRack versioned.Interface
	// Reader is the cache of leases and instances.
	Reader Reader
	// Events receives events about leases and instances, and about Self.
	Events record.EventRecorder
	// Self is the object that stands for macrack-runners in events.
	Self *metav1.PartialObjectMetadata
	// Metrics are the metrics.
	Metrics *metrics.Metrics
	// Clock is the clock.
	Clock clock.Clock
}

// Set reconciles one set of runners.
type Set struct {
	Environment
	config *config.Set
	source Source
	wake   chan struct{}

	// The fields below belong to the goroutine of Run.
	leases    overlay[*rackv1alpha1.MacNodeLease]
	instances overlay[*instancev1alpha1.MacOSInstance]
	history   *floor.History
	refused   refusal // of a lease
	rejected  refusal // of an instance
	failures  failures
	decided   map[string]floor.Decision
	last      time.Time
	began     time.Time

	background sync.WaitGroup
	mu         sync.Mutex
	attempts   map[types.UID]*attempt
	failed     []string // the reasons for which machines failed since the last reconciliation
	succeeded  bool     // a job ran to its end since then
}

// New returns a set. The history is the memory of the forecast; it may be that of an earlier Set of
// the same name.
func New(environment Environment, config *config.Set, source Source, history *floor.History) *Set {
	return &Set{
		Environment: environment, config: config, source: source, history: history,
		began: environment.Clock.Now(), wake: make(chan struct{}, 1), decided: map[string]floor.Decision{}, attempts: map[types.UID]*attempt{},
		leases: overlay[*rackv1alpha1.MacNodeLease]{}, instances: overlay[*instancev1alpha1.MacOSInstance]{},
	}
}

// Wake makes the set reconcile soon.
func (s *Set) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run reconciles the set until ctx ends. Then it waits for the jobs that are being started. It ends
// no job and no machine.
func (s *Set) Run(ctx context.Context) {
	sourceEnded := make(chan struct{})
	go func() {
		defer close(sourceEnded)
		s.source.Run(ctx, s.Wake)
	}()
	for ctx.Err() == nil {
		s.reconcile(ctx)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-s.Clock.After(resync):
		}
		select {
		case <-ctx.Done():
		case <-s.Clock.After(pause):
		}
	}
	s.background.Wait()
	<-sourceEnded
}

// state is one view of the objects of the set.
type state struct {
	now       time.Time
	leases    []*rackv1alpha1.MacNodeLease
	instances []*instancev1alpha1.MacOSInstance
	machines  []machines.Machine // of instances, in the same order
}

func (s *Set) observe() (*state, error) {
	leases, err := s.Reader.Leases(s.config.Name)
	if err != nil {
		return nil, err
	}
	instances, err := s.Reader.Instances(s.config.Name)
	if err != nil {
		return nil, err
	}
	o := &state{now: s.Clock.Now(), leases: s.leases.merge(leases, s.Clock.Now()), instances: s.instances.merge(instances, s.Clock.Now())}
	slices.SortFunc(o.leases, func(a, b *rackv1alpha1.MacNodeLease) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.instances, func(a, b *instancev1alpha1.MacOSInstance) int { return strings.Compare(a.Name, b.Name) })
	for _, instance := range o.instances {
		m := observe.Machine(instance)
		m.Outdated = !s.draining() && s.outdated(instance, o.lease(instance.Spec.LeaseName))
		o.machines = append(o.machines, m)
	}
	return o, nil
}

// reconcile makes one step from the observed to the desired state. Failed steps are repeated by the
// next reconciliation.
func (s *Set) reconcile(ctx context.Context) {
	o, err := s.observe()
	if err != nil {
		s.failedTo("list objects", err)
		return
	}
	s.countFailures(o.now)
	facts := s.facts(o)
	decisions := floor.Decide(facts)
	s.measure(o, facts)
	var kept []string
	for _, d := range decisions {
		switch d.Action {
		case floor.Place:
			s.assign(ctx, o, d)
		case floor.Grow:
			s.grow(ctx, o, d)
		case floor.ReleaseAtFloor, floor.ReleaseNow:
			s.release(ctx, o, d)
		case floor.Keep:
			if !s.draining() && takesMachines(facts, d) {
				kept = append(kept, d.Lease)
			}
		}
	}
	s.record(o, decisions)
	s.keepMachines(ctx, o, kept)
	s.serve(ctx, o)
	s.renew(ctx, o)
}

// draining reports whether the set was removed from the configuration.
func (s *Set) draining() bool {
	_, none := s.source.(None)
	return none
}

// steady reports whether each machine of the set runs a script from its boot.
func (s *Set) steady() bool { return s.config.Script != nil }

// facts returns the inputs of the floor rule.
func (s *Set) facts(o *state) floor.Facts {
	limits := s.config.Limits()
	facts := floor.Facts{Now: o.now, Limits: limits}
	facts.Refused, facts.RefusedDetail = s.refused.at(o.now)
	for _, lease := range o.leases {
		if l, ok := observe.Lease(lease, o.machines); ok {
			facts.Leases = append(facts.Leases, l)
		}
	}
	waiting, known := s.source.Waiting(s.capacity(o, facts))
	facts.Waiting, facts.Unknown = waiting, !known && o.now.Sub(s.began) < unknownTimeout
	facts.Sustained = s.history.Record(o.now, facts.Demand(), limits.GrowAfter)
	if !limits.Steady && !s.draining() {
		facts.Expected = s.history.Expected(o.now)
	}
	return facts
}

// capacity returns what the set has for jobs. Deleted and offline leases take the place of others.
func (s *Set) capacity(o *state, facts floor.Facts) Capacity {
	c := Capacity{Slots: s.config.Leases.Max * s.config.Instances.PerLease}
	for _, l := range facts.Leases {
		if l.Phase == floor.Ending || l.Offline {
			c.Slots -= s.config.Instances.PerLease
		}
	}
	for i, m := range o.machines {
		annotations := o.instances[i].Annotations
		switch m.State {
		case machines.Busy:
			c.Busy = append(c.Busy, o.instances[i])
		case machines.Done:
			if _, hadJob := annotations[observe.AnnotationJob]; hadJob && annotations[observe.AnnotationJobResult] == "" {
				c.Unreported++
			}
		case machines.Warm:
			c.Ready++
		}
	}
	return c
}

// takesMachines reports whether machines are created on a kept lease: it is bound, and its Mac is
// online. The machines of a steady set never become idle, so that a surplus lease takes none.
func takesMachines(facts floor.Facts, d floor.Decision) bool {
	if facts.Limits.Steady && (d.Reason == floor.Busy || d.Reason == floor.RecentlyUsed) {
		return false
	}
	for _, l := range facts.Leases {
		if l.Name == d.Lease {
			return l.Phase == floor.Bound && !l.Offline
		}
	}
	return false
}

func (s *Set) failedTo(action string, err error) {
	s.Metrics.Errors.WithLabelValues(s.config.Name, action).Inc()
	klog.ErrorS(err, "Failed to "+action, "set", s.config.Name)
}

// refusal is the refusal of an object by the API server. It holds for a while; then another one is
// tried.
type refusal struct {
	reason  floor.Reason
	message string
	until   time.Time
}

// at returns the reason and the message of a refusal that holds; otherwise "".
func (r *refusal) at(now time.Time) (floor.Reason, string) {
	if now.Before(r.until) {
		return r.reason, r.message
	}
	return "", ""
}

// failures delays the creation of machines after machines have failed, up to ten minutes.
type failures struct {
	count  int
	reason string // of the last one
	until  time.Time
}

// countFailures takes over the results of the background.
func (s *Set) countFailures(now time.Time) {
	s.mu.Lock()
	failed, succeeded := s.failed, s.succeeded
	s.failed, s.succeeded = nil, false
	s.mu.Unlock()
	if succeeded {
		s.failures = failures{}
	}
	for _, reason := range failed {
		s.failures.count++
		s.failures.reason = reason
		s.failures.until = now.Add(min(10*time.Second<<min(s.failures.count-1, 10), 10*time.Minute))
	}
}

// measure publishes the state of the set.
func (s *Set) measure(o *state, facts floor.Facts) {
	since := time.Duration(0)
	if !s.last.IsZero() {
		since = max(o.now.Sub(s.last), 0)
	}
	s.last = o.now
	s.Metrics.Facts(s.config.Name, facts, o.machines, since, s.paused(o.now))
}

// paused returns the reason for which no machines are created, or "".
func (s *Set) paused(now time.Time) string {
	if now.Before(s.failures.until) {
		return s.failures.reason
	}
	return string(s.rejected.reason)
}
