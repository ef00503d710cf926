// Package gitlab is the custom executor of gitlab-runner. The stages of a job are commands that
// gitlab-runner starts. A job asks for a machine by a claim: a Lease of coordination.k8s.io, which
// it renews while it waits.
package gitlab

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

const (
	// labelClaim is the label of claims.
	labelClaim = "runners.macrack.io/claim"
	// claimDuration is the time for which a claim holds after its renewal.
	claimDuration = time.Minute
	// acceptTimeout is the time in which a job must accept its machine.
	acceptTimeout = 2 * time.Minute
)

// Source is the queue of the jobs that wait for a machine.
type Source struct {
	sets.Environment
	set    string
	client kubernetes.Interface
	leases coordinationv1client.LeaseInterface

	mu     sync.Mutex
	claims map[string]claim // by their names
	synced func() bool      // nil until Run
}

// claim is a claim as it was last seen. It expires by the clock of this process, since that of
// gitlab-runner can differ.
type claim struct {
	*coordinationv1.Lease
	renewed time.Time
}

// New returns the source of a set.
func New(environment sets.Environment, set *config.Set, client kubernetes.Interface) *Source {
	return &Source{
		Environment: environment, set: set.Name, client: client, leases: client.CoordinationV1().Leases(environment.Namespace),
		claims: map[string]claim{},
	}
}

func claimsOf(set string) string { return labelClaim + "=true," + observe.LabelSet + "=" + set }

// Run watches the claims, and removes expired ones.
func (s *Source) Run(ctx context.Context, changed func()) {
	s.Metrics.Source(s.set, "")
	selector := claimsOf(s.set)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: s.keep(changed), UpdateFunc: func(_, object any) { s.keep(changed)(object) }, DeleteFunc: s.drop(changed),
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.LabelSelector = selector
				return s.leases.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = selector
				return s.leases.Watch(ctx, o)
			},
		}, s.client),
		ObjectType: &coordinationv1.Lease{}, Handler: handler,
	})
	s.mu.Lock()
	s.synced = controller.HasSynced
	s.mu.Unlock()
	go controller.RunWithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.Clock.After(claimDuration):
			s.expire(ctx)
		}
	}
}

func (s *Source) keep(changed func()) func(any) {
	return func(object any) {
		lease := object.(*coordinationv1.Lease)
		s.mu.Lock()
		was, found := s.claims[lease.Name]
		if !found || was.UID != lease.UID || !was.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
			was.renewed = s.Clock.Now()
		}
		s.claims[lease.Name] = claim{lease, was.renewed}
		s.mu.Unlock()
		changed()
	}
}

func (s *Source) drop(changed func()) func(any) {
	return func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if lease, ok := object.(*coordinationv1.Lease); ok {
			s.mu.Lock()
			delete(s.claims, lease.Name)
			s.mu.Unlock()
		}
		changed()
	}
}

// oldestFirst returns the claims in the order of their creation.
func (s *Source) oldestFirst() []claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.claims), func(a, b claim) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

func (s *Source) expired(c claim) bool { return s.Clock.Since(c.renewed) > claimDuration }

// expire deletes the claims of jobs that are gone.
func (s *Source) expire(ctx context.Context) {
	for _, c := range s.oldestFirst() {
		if !s.expired(c) {
			continue
		}
		err := s.leases.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}})
		if err != nil {
			klog.ErrorS(err, "Failed to delete an expired claim", "claim", klog.KObj(c.Lease))
		}
	}
}

// Waiting returns the claims that have no machine.
func (s *Source) Waiting(c sets.Capacity) (waiting []string, known bool) {
	served := map[string]bool{}
	for _, instance := range c.Busy {
		served[instance.Annotations[observe.AnnotationJob]] = true
	}
	for _, claim := range s.oldestFirst() {
		if !served[claim.Name] && !s.expired(claim) {
			waiting = append(waiting, claim.Name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return waiting, s.synced != nil && s.synced()
}

// Prepare changes nothing: gitlab-runner sends its scripts.
func (s *Source) Prepare(*instancev1alpha1.MacOSInstance) {}

// Start counts the wait of the job: its commands find the machine by its annotation.
func (s *Source) Start(_ context.Context, instance *instancev1alpha1.MacOSInstance) error {
	s.mu.Lock()
	claim, found := s.claims[instance.Annotations[observe.AnnotationJob]]
	s.mu.Unlock()
	if found {
		s.Metrics.JobStarted(s.set, observe.Time(instance, observe.AnnotationJobAssignedAt).Sub(claim.CreationTimestamp.Time))
	}
	return nil
}

// Stale returns NotNeeded for a machine that its job has not accepted in time.
func (s *Source) Stale(instance *instancev1alpha1.MacOSInstance) sets.Result {
	accepted := observe.Time(instance, observe.AnnotationJobStartedAt)
	if accepted.IsZero() && s.Clock.Since(observe.Time(instance, observe.AnnotationJobAssignedAt)) > acceptTimeout {
		return sets.NotNeeded
	}
	return ""
}

// Result returns Lost: the commands of the job note any other result.
func (s *Source) Result(*instancev1alpha1.MacOSInstance) sets.Result { return sets.Lost }

// Forget does nothing: claims expire.
func (s *Source) Forget(context.Context, *instancev1alpha1.MacOSInstance) error { return nil }
