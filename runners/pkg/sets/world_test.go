package sets

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/fakes"
	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
)

const namespace = "acme"

// queue is a source whose jobs are numbers of machines.
type queue struct {
	None
	mu        sync.Mutex
	jobs      int
	started   map[string]int
	startErr  error
	forgetErr error
	stale     Result
	unknown   bool
	capacity  Capacity
	result    func(*instancev1alpha1.MacOSInstance) Result
}

func (q *queue) Waiting(c Capacity) ([]string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.capacity = c
	var waiting []string
	for n := range q.jobs - len(c.Busy) {
		waiting = append(waiting, fmt.Sprintf("job %d", n))
	}
	return waiting, !q.unknown
}

func (q *queue) Start(_ context.Context, instance *instancev1alpha1.MacOSInstance) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.startErr == nil {
		q.started[instance.Name]++
	}
	return q.startErr
}

func (q *queue) Forget(context.Context, *instancev1alpha1.MacOSInstance) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forgetErr
}

func (q *queue) Stale(*instancev1alpha1.MacOSInstance) Result { return q.stale }

func (q *queue) Result(instance *instancev1alpha1.MacOSInstance) Result {
	if q.result != nil {
		return q.result(instance)
	}
	return q.None.Result(instance)
}

// world is a set with its clients, and a Mac for each lease.
type world struct {
	*testing.T
	*Set
	client   *fake.Clientset
	clock    *clocktesting.FakeClock
	source   *queue
	events   *record.FakeRecorder
	registry *prometheus.Registry
}

// direct reads the objects of the clientset, without a cache.
type direct struct{ client *fake.Clientset }

func (d direct) Leases(string) ([]*rackv1alpha1.MacNodeLease, error) {
	list, err := d.client.RackV1alpha1().MacNodeLeases(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var leases []*rackv1alpha1.MacNodeLease
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}
	return leases, nil
}

func (d direct) Instances(string) ([]*instancev1alpha1.MacOSInstance, error) {
	list, err := d.client.InstanceV1alpha1().MacOSInstances(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var instances []*instancev1alpha1.MacOSInstance
	for i := range list.Items {
		instances = append(instances, &list.Items[i])
	}
	return instances, nil
}

// parse returns a set with settings of its instances and a source.
func parse(t *testing.T, settings, source string) *config.Set {
	t.Helper()
	parsed, err := config.Parse([]byte(`apiVersion: runners.macrack.io/v1alpha1
kind: RunnersConfiguration
sets:
- name: ios
  leases: {max: 2, growAfter: 0s}
  instances: {className: small, imageName: xcode` + settings + `}
  ` + source + `
`))
	require.NoError(t, err)
	return &parsed.Sets[0]
}

func newWorld(t *testing.T, settings string) *world {
	t.Helper()
	w := &world{
		T: t, client: fakes.New(), clock: clocktesting.NewFakeClock(time.Now()), source: &queue{started: map[string]int{}}, events: record.NewFakeRecorder(1000),
		registry: prometheus.NewRegistry(),
	}
	environment := Environment{
		Namespace: namespace, MacRack: w.client, Reader: direct{w.client}, Events: w.events, Self: Self(namespace, "macrack-runners"),
		Metrics: metrics.New(w.registry), Clock: w.clock,
	}
	w.Set = New(environment, parse(t, settings, "gitlab: {}"), w.source, &floor.History{})
	return w
}

// step reconciles, and waits for the work in the background. Each pending lease is bound, and each
// new instance boots, unless fate says otherwise.
func (w *world) step() {
	w.Helper()
	w.reconcile(w.Context())
	w.background.Wait()
	w.clock.Step(time.Second)
}

func (w *world) bind() {
	w.Helper()
	for _, lease := range w.allLeases() {
		if lease.Status.BoundAt != nil {
			continue
		}
		at := metav1.NewTime(w.clock.Now().Truncate(time.Second))
		floor := metav1.NewTime(at.Add(24 * time.Hour))
		lease.Status.Phase, lease.Status.BoundAt, lease.Status.EarliestReleaseAt = rackv1alpha1.MacNodeLeaseBound, &at, &floor
		_, err := w.client.RackV1alpha1().MacNodeLeases(namespace).Update(w.Context(), lease, metav1.UpdateOptions{})
		require.NoError(w, err)
	}
}

func (w *world) boot() {
	w.Helper()
	for _, instance := range w.all() {
		if instance.Status.Phase != "" {
			continue
		}
		w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Phase = instancev1alpha1.MacOSInstanceRunning
			s.Conditions = []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceGuestReady, Status: metav1.ConditionTrue}}
		})
	}
}

func (w *world) status(instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) {
	w.Helper()
	change(&instance.Status)
	_, err := w.client.InstanceV1alpha1().MacOSInstances(namespace).Update(w.Context(), instance, metav1.UpdateOptions{})
	require.NoError(w, err)
}

// ends ends the startup script of an instance.
func (w *world) ends(instance *instancev1alpha1.MacOSInstance, code int32) {
	w.Helper()
	w.status(instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Startup = &instancev1alpha1.StartupResult{ExitCode: code}
	})
}

func (w *world) allLeases() []*rackv1alpha1.MacNodeLease {
	leases, err := direct{w.client}.Leases("")
	require.NoError(w, err)
	return leases
}

func (w *world) all() []*instancev1alpha1.MacOSInstance {
	instances, err := direct{w.client}.Instances("")
	require.NoError(w, err)
	return instances
}

func (w *world) busy() []*instancev1alpha1.MacOSInstance {
	var busy []*instancev1alpha1.MacOSInstance
	for _, instance := range w.all() {
		if instance.Annotations[observe.AnnotationJob] != "" {
			busy = append(busy, instance)
		}
	}
	return busy
}

// run makes a job run: a lease with a booted machine that has it.
func (w *world) run() *instancev1alpha1.MacOSInstance {
	w.Helper()
	w.source.jobs = 1
	w.step()
	w.bind()
	w.step()
	w.boot()
	w.step()
	w.step()
	require.Len(w, w.busy(), 1)
	return w.busy()[0]
}

// created counts the instances that are created from now on.
func (w *world) created() *int {
	n := new(int)
	w.client.PrependReactor("create", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
		*n++
		return false, nil, nil
	})
	return n
}

// pausedBy returns the reason for which no machines are created, as the metrics have it.
func (w *world) pausedBy() string {
	w.Helper()
	families, err := w.registry.Gather()
	require.NoError(w, err)
	for _, family := range families {
		if family.GetName() == "macrack_runners_machines_paused" {
			require.Len(w, family.GetMetric(), 1)
			for _, label := range family.GetMetric()[0].GetLabel() {
				if label.GetName() == "reason" {
					assert.Equal(w, label.GetValue() != "", family.GetMetric()[0].GetGauge().GetValue() == 1)
					return label.GetValue()
				}
			}
		}
	}
	w.Fatal("no metric")
	return ""
}

func (w *world) eventsContain(want string) {
	w.Helper()
	var all []string
	for {
		select {
		case event := <-w.events.Events:
			all = append(all, event)
			continue
		default:
		}
		break
	}
	assert.Contains(w, strings.Join(all, "\n"), want)
}
