package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// A MacNode accepts 32 results: a larger report would be refused as a whole, heartbeat included.
func TestImageChecksAreNoMoreThanAMacNodeTakes(t *testing.T) {
	c := &imageChecks{}
	for i := range maxImageChecks + 8 {
		c.add(rackv1alpha1.ImageCheck{Name: fmt.Sprintf("image-%02d", i), ObservedGeneration: 1, Reason: "Verified"}, time.Now())
	}
	list := c.list()
	require.Len(t, list, maxImageChecks)
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
	a := &Agent{
		config: Config{NodeName: nodeName, Images: store, Clock: clocktesting.NewFakeClock(time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC))},
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]()),
	}
	require.NoError(t, a.verifyImage(t.Context(), pendingImage("away", "Unreachable", nil), metav1.NamespaceNone))
	require.True(t, store.bounded)
	assert.WithinDuration(t, time.Now().Add(imageCheckTimeout), store.deadline, imageCheckTimeout/2)
}
