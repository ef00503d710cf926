package agent

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/images/ociclient"
)

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
	a := &Agent{config: Config{NodeName: nodeName, Macrack: client, Images: store, Clock: clock}, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]())}
	look := func() []string {
		store.checked = nil
		a.verifyImages(t.Context())
		return store.checked
	}
	assert.ElementsMatch(t, []string{"away", "refused", "unknown", "provider"}, look())
	reasons := map[string]string{}
	for _, found := range a.checks.list() {
		assert.EqualValues(t, 2, found.ObservedGeneration)
		reasons[found.Name] = found.Reason
	}
	assert.Equal(t, map[string]string{"away": "Verified", "refused": "Unreachable", "unknown": "ManifestUnknown", "provider": "Verified"}, reasons)
	assert.Positive(t, a.queue.Len(), "the MacNode reports it")

	assert.Empty(t, look(), "not before it is due")
	clock.Step(imageCheckInterval)
	assert.Len(t, look(), 4)
	clock.Step(imageCheckInterval)
	assert.Empty(t, look(), "the wait doubles")
	for range 20 {
		clock.Step(maxImageCheckWait)
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
	for _, found := range a.checks.list() {
		names = append(names, found.Name)
	}
	assert.Equal(t, []string{"provider", "refused", "unknown"}, names)
}

// An image that the controllers cannot verify is verified and reported by the Mac that runs an
// instance of it.
func TestAnInstanceVerifiesItsImage(t *testing.T) {
	store := &checkedStore{results: map[string]error{"macos-26": errors.New("no auxiliary storage")}}
	r := newRack(t, func(r *rack) {
		store.Store = &images.Simulated{Dir: t.TempDir(), Clock: r.clock}
		r.images = store
	})
	image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(r.ctx, "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.Generation, image.Status = 2, pendingImage("macos-26", "PullSecretUnreadable", nil).Status
	_, err = r.macrack.ImageV1alpha1().MacOSImages().Update(r.ctx, image, metav1.UpdateOptions{})
	require.NoError(t, err)
	i := newInstance("one")
	r.create(i, newPod(i))
	found := func() rackv1alpha1.ImageCheck {
		mac, err := r.macrack.RackV1alpha1().MacNodes().Get(r.ctx, nodeName, metav1.GetOptions{})
		if err != nil || len(mac.Status.ImageChecks) != 1 {
			return rackv1alpha1.ImageCheck{}
		}
		return mac.Status.ImageChecks[0]
	}
	require.Eventually(t, func() bool { return found().Reason == "Unreachable" }, 20*time.Second, 10*time.Millisecond)
	store.mu.Lock()
	store.results = nil
	store.mu.Unlock()
	require.Eventually(t, func() bool {
		return found() == rackv1alpha1.ImageCheck{Name: "macos-26", ObservedGeneration: 2, Reason: "Verified"}
	}, 60*time.Second, 10*time.Millisecond)
}
