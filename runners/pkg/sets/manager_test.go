package sets

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/fakes"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/observe"
)

// fast is a real clock whose waits are a tenth.
type fast struct{ clock.RealClock }

func (f fast) After(d time.Duration) <-chan time.Time { return f.RealClock.After(d / 10) }

func TestManager(t *testing.T) {
	client := fakes.New()
	cache := NewCache(client, namespace)
	environment := Environment{
		Namespace: namespace, MacRack: client, Reader: cache, Events: record.NewFakeRecorder(1000), Self: Self(namespace, "macrack-runners"),
		Metrics: metrics.New(prometheus.NewRegistry()), Clock: fast{},
	}
	var mu sync.Mutex
	var current *config.RunnersConfiguration
	var invalid error
	load := func(max string) {
		parsed, err := config.Parse([]byte(`apiVersion: runners.macrack.io/v1alpha1
kind: RunnersConfiguration
sets:
- name: ios
  leases: {min: 1, max: ` + max + `}
  instances: {className: small, imageName: xcode}
  gitlab: {}
- name: other
  leases: {max: 1}
  instances: {className: small, imageName: xcode}
  gitlab: {}
`))
		require.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		current, invalid = parsed, nil
	}
	leases := func() []rackv1alpha1.MacNodeLease {
		list, err := client.RackV1alpha1().MacNodeLeases(namespace).List(context.Background(), metav1.ListOptions{})
		require.NoError(t, err)
		return list.Items
	}
	// A set of an earlier configuration has a lease that no Mac was found for.
	_, err := client.RackV1alpha1().MacNodeLeases(namespace).Create(t.Context(), &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: "old-1", Labels: map[string]string{observe.LabelSet: "old"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	load("2")
	manager := &Manager{
		Environment: environment, Cache: cache, Source: func(*config.Set) Source { return &queue{started: map[string]int{}} },
		Load: func() (*config.RunnersConfiguration, error) {
			mu.Lock()
			defer mu.Unlock()
			return current, invalid
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	names := func(want ...string) {
		t.Helper()
		assert.Eventually(t, func() bool {
			var got []string
			for _, lease := range leases() {
				got = append(got, lease.Name)
			}
			return assert.ObjectsAreEqual(want, got)
		}, 10*time.Second, 20*time.Millisecond, "%v", want)
	}
	names("ios-1") // the minimum; the lease of the old set is deleted

	mu.Lock()
	invalid = errors.New("sets: Required value")
	mu.Unlock()
	assert.Eventually(t, func() bool { return testutil.ToFloat64(environment.Metrics.ConfigValid) == 0 }, 5*time.Second, 20*time.Millisecond)
	names("ios-1") // it stays

	mu.Lock()
	current = &config.RunnersConfiguration{Sets: current.Sets[1:]}
	invalid = nil
	mu.Unlock()
	names() // the set was removed; its lease had no Mac
}
