package imagestatus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/queue"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
	"macrack.io/macrack/pkg/rules"
)

func newChecker(store images.Store, client versioned.Interface, c clock.Clock) *Checker {
	return NewChecker(&Cache{Store: store, Queue: queue.New[queue.Key](c, time.Second)}, client, c)
}

// A MacNode accepts 32 results: a larger report would be refused as a whole, heartbeat included.
func TestImageChecksAreLimited(t *testing.T) {
	c := &results{}
	for i := range maxResults + 8 {
		c.add(rackv1alpha1.ImageCheck{Name: fmt.Sprintf("image-%02d", i), ObservedGeneration: 1, Reason: "Verified"}, time.Now())
	}
	list := c.Results()
	require.Len(t, list, maxResults)
	assert.Equal(t, "image-00", list[0].Name, "the same ones in each report")
	assert.Equal(t, "image-31", list[31].Name)
}

// deadlineStore stores the deadline of a check.
type deadlineStore struct {
	*checkedStore
	deadline time.Time
	bounded  bool
}

func (s *deadlineStore) Check(ctx context.Context, image images.Image, needs images.Needs) error {
	s.deadline, s.bounded = ctx.Deadline()
	return s.checkedStore.Check(ctx, image, needs)
}

// An unresponsive registry delays the verification of other images by at most a minute.
func TestVerificationOfAnImageIsBounded(t *testing.T) {
	store := &deadlineStore{checkedStore: &checkedStore{}}
	checker := newChecker(store, nil, clocktesting.NewFakeClock(time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)))
	require.NoError(t, checker.check(t.Context(), pendingImage("away", "Unreachable", nil), metav1.NamespaceNone))
	require.True(t, store.bounded)
	assert.WithinDuration(t, time.Now().Add(checkTimeout), store.deadline, checkTimeout/2)
}

// checkedStore is a store whose registry responds as the test sets.
type checkedStore struct {
	images.Store
	mu      sync.Mutex
	results map[string]error
	checked []string
}

func (s *checkedStore) Check(_ context.Context, image images.Image, _ images.Needs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = append(s.checked, image.Name)
	return s.results[image.Name]
}

func pendingImage(name, reason string, secret *imagev1alpha1.SecretReference) *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}, Spec: imagev1alpha1.MacOSImageSpec{PullSecretRef: secret},
		Status: imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImagePending, Conditions: []metav1.Condition{
			{Type: imagev1alpha1.MacOSImageReadyCondition, Status: metav1.ConditionFalse, Reason: reason, ObservedGeneration: 2}}},
	}
}

func TestImagesThatAwaitAMac(t *testing.T) {
	stale := pendingImage("stale", "Unreachable", nil)
	stale.Generation = 3
	ready := pendingImage("ready", "Unreachable", nil)
	ready.Status.Phase = imagev1alpha1.MacOSImageReady
	client := macrackfake.NewSimpleClientset(
		pendingImage("away", "Unreachable", nil), pendingImage("refused", "Unauthorized", nil), pendingImage("unknown", "Unreachable", nil),
		pendingImage("provider", "PullSecretUnreadable", &imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}),
		pendingImage("tenant", "PullSecretUnreadable", &imagev1alpha1.SecretReference{Namespace: "acme", Name: "robot"}),
		pendingImage("new", "Verifying", nil), stale, ready,
	)
	store := &checkedStore{results: map[string]error{"refused": errors.New("connection refused"), "unknown": &ociclient.StatusError{Code: http.StatusNotFound}}}
	clock := clocktesting.NewFakeClock(time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC))
	checker := newChecker(store, client, clock)
	look := func() []string {
		store.checked = nil
		checker.CheckAll(t.Context())
		return store.checked
	}
	assert.ElementsMatch(t, []string{"away", "refused", "unknown", "provider"}, look())
	reasons := map[string]string{}
	for _, found := range checker.Results() {
		assert.EqualValues(t, 2, found.ObservedGeneration)
		reasons[found.Name] = found.Reason
	}
	assert.Equal(t, map[string]string{"away": "Verified", "refused": "Unreachable", "unknown": "ManifestUnknown", "provider": "Verified"}, reasons)
	assert.Positive(t, checker.cache.Queue.Len(), "the MacNode reports it")

	assert.Empty(t, look(), "not before it is due")
	clock.Step(firstCheckWait)
	assert.Len(t, look(), 4)
	clock.Step(firstCheckWait)
	assert.Empty(t, look(), "the wait doubles")
	for range 20 {
		clock.Step(maxCheckWait)
		assert.Len(t, look(), 4)
	}

	// The spec of one image was corrected, and another image is Ready.
	fixed := pendingImage("refused", "Unreachable", nil)
	fixed.Generation, fixed.Status.Conditions[0].ObservedGeneration = 3, 3
	_, err := client.ImageV1alpha1().MacOSImages().Update(t.Context(), fixed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.ImageV1alpha1().MacOSImages().Delete(t.Context(), "away", metav1.DeleteOptions{}))
	assert.Equal(t, []string{"refused"}, look())
	var names []string
	for _, found := range checker.Results() {
		names = append(names, found.Name)
	}
	assert.Equal(t, []string{"provider", "refused", "unknown"}, names)
}

func TestImageChecksThatDoNotFit(t *testing.T) {
	c := &results{}
	for n := range maxResults {
		c.add(rackv1alpha1.ImageCheck{Name: fmt.Sprintf("a-%02d", n), Reason: "Unreachable"}, metav1.Now().Time)
	}
	c.add(rackv1alpha1.ImageCheck{Name: "z", Reason: verify.Reason(nil)}, metav1.Now().Time)
	list := c.Results()
	assert.Len(t, list, maxResults)
	assert.Equal(t, "z", list[maxResults-1].Name, "it becomes Ready by this")
}

func TestCheckDue(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	c, results := NewChecker(nil, nil, clock), false
	// turns returns the number of turns during a time, with the ticks of the agent.
	turns := func(d time.Duration) (n int) {
		for end := clock.Now().Add(d); clock.Now().Before(end); {
			clock.SetTime(clock.Now().Add(rules.MinimumImageCheckInterval))
			if c.takeTurn(results) {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 4, turns(time.Minute), "before the configuration is known")
	c.SetSchedule(rules.MinimumImageCheckInterval, false)
	assert.Equal(t, 40, turns(10*time.Minute))
	c.SetSchedule(5*time.Minute, false)
	assert.Equal(t, 1, turns(5*time.Minute), "at a random time of the new interval")
	assert.Equal(t, 12, turns(time.Hour))
	clock.SetTime(clock.Now().Add(-24 * time.Hour))
	assert.Equal(t, 1, turns(time.Minute), "the clock was set back")
	c.SetSchedule(rules.MinimumImageCheckInterval, true)
	assert.Zero(t, turns(time.Hour), "no image awaits a Mac")
	results = true
	assert.Equal(t, 1, turns(rules.MinimumImageCheckInterval), "but there are results to drop")
	results = false
	c.SetSchedule(rules.MinimumImageCheckInterval, false)
	assert.Equal(t, 4, turns(time.Minute))
}
