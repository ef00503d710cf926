package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// checkedStore is a store whose registry responds as the test sets.
type checkedStore struct {
	images.Store
	mu     sync.Mutex
	result error
}

func (s *checkedStore) Check(context.Context, images.Image, images.Needs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// An image that the controllers cannot verify is verified and reported by the Mac that runs an
// instance of it.
func TestAnInstanceVerifiesItsImage(t *testing.T) {
	store := &checkedStore{result: errors.New("no auxiliary storage")}
	r := newRack(t, func(r *rack) {
		store.Store = &images.Simulated{Dir: t.TempDir(), Clock: r.clock}
		r.images = store
	})
	image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(r.ctx, "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.Generation, image.Status.Phase = 2, imagev1alpha1.MacOSImagePending
	image.Status.Conditions = []metav1.Condition{
		{Type: imagev1alpha1.MacOSImageReadyCondition, Status: metav1.ConditionFalse, Reason: "PullSecretUnreadable", ObservedGeneration: 2},
	}
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
	store.result = nil
	store.mu.Unlock()
	require.Eventually(t, func() bool {
		return found() == rackv1alpha1.ImageCheck{Name: "macos-26", ObservedGeneration: 2, Reason: "Verified"}
	}, 60*time.Second, 10*time.Millisecond)
}
