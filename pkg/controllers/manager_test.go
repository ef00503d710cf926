package controllers

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
)

func TestAMacThatFallsSilent(t *testing.T) {
	r := newRack(t)
	defer r.run()()
	r.beat(1)
	r.eventually("the Mac is online", func() bool { return r.isReady() == "True" })
	r.eventually("it is watched", r.clock.HasWaiters)
	r.clock.Step(59 * time.Second)
	require.Equal(t, "True", r.isReady())
	r.clock.Step(time.Second)
	r.eventually("the Mac is offline", func() bool { return r.isReady() == "False" })
	r.beat(2)
	r.eventually("the Mac is back", func() bool { return r.isReady() == "True" })
}

// A Mac verifies the image, because the controllers cannot reach its registry.
func TestAnImage(t *testing.T) {
	r := newRack(t)
	defer r.run()()
	images := r.ours.ImageV1alpha1().MacOSImages()
	digest := "sha256:" + strings.Repeat("a", 64)
	_, err := images.Create(t.Context(), &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "tahoe"},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: "127.0.0.1:1/macos/26", Digest: digest}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually("the controllers do not reach the registry", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		if err != nil || image.Status.Phase != imagev1alpha1.MacOSImagePending {
			return false
		}
		ready := meta.FindStatusCondition(image.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
		return ready != nil && ready.Reason == imagev1alpha1.ReasonUnreachable
	})
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.ImageChecks = []rackv1alpha1.ImageCheck{{Name: "tahoe", Reason: imagev1alpha1.ReasonVerified}}
	})
	r.eventually("the image is ready", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		return err == nil && image.Status.Phase == imagev1alpha1.MacOSImageReady
	})
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.Images = []rackv1alpha1.CachedImage{{Name: "tahoe", Digest: digest, SizeBytes: 50}}
	})
	r.eventually("the image is on the Mac", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		return err == nil && len(image.Status.ReplicatedOn) == 1 && image.Status.SizeBytes == 50
	})
}

func TestNew(t *testing.T) {
	_, err := New(Config{})
	assert.ErrorContains(t, err, "a client of the Kubernetes API")

	// Without a recorder, Events are written to the cluster.
	core := kubefake.NewClientset()
	m, err := New(Config{MacRack: fake.NewSimpleClientset(), Core: core})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, Alone) }()
	require.Eventually(t, m.Synced, 2*time.Minute, time.Millisecond)
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "a", UID: "u"}}
	require.Eventually(t, func() bool {
		m.deps.Recorder.Event(lease, corev1.EventTypeNormal, "Bound", "bound") // lost until the work has begun
		events, err := core.CoreV1().Events("acme").List(ctx, metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.Kind == "MacNodeLease"
	}, 2*time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	assert.ErrorContains(t, m.Run(t.Context(), Alone), "has already run")
}

func TestWaitingForTheLeadership(t *testing.T) {
	core := kubefake.NewClientset()
	m, err := New(Config{MacRack: fake.NewSimpleClientset(), Core: core})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	elected, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- m.Run(ctx, func(ctx context.Context, work func(context.Context) error) error {
			<-elected
			return work(ctx)
		})
	}()
	require.Eventually(t, m.Synced, 2*time.Minute, time.Millisecond, "the caches are filled before the election")
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "a", UID: "u"}}
	m.deps.Recorder.Event(lease, corev1.EventTypeNormal, "Waiting", "recorded by a process that waits")
	close(elected)
	var events []corev1.Event
	require.Eventually(t, func() bool {
		m.deps.Recorder.Event(lease, corev1.EventTypeNormal, "Leading", "recorded by the leader")
		list, err := core.CoreV1().Events("acme").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		events = list.Items
		return len(events) > 0
	}, 2*time.Minute, time.Millisecond)
	for _, event := range events {
		assert.Equal(t, "Leading", event.Reason, "a process that waits sends no Events")
	}
	cancel()
	require.NoError(t, <-done)
}
