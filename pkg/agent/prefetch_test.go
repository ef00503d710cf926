package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestPrefetchesTakeTurns(t *testing.T) {
	r, s := slowRack(t, nil)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, name := range names {
		_, err := r.macrack.ImageV1alpha1().MacOSImages().Create(r.ctx, &imagev1alpha1.MacOSImage{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Digest: "sha256:" + name}, DiskSize: scalar.MustParse("1Mi")},
			Status:     imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.PrefetchImages = names })
	needs := <-s.asked
	kept, err := needs.Keep()
	require.NoError(t, err)
	assert.Equal(t, names, kept, "they are not evicted for one another")
	// Other work continues during the pull.
	i := newInstance("one")
	r.create(i, newPod(i))
	<-s.asked
	r.waitPhase("one", instancev1alpha1.MacOSInstancePulling)
	assert.Empty(t, s.asked, "no second prefetch has begun")
	s.fate <- nil
	s.fate <- nil
	r.waitPhase("one", instancev1alpha1.MacOSInstanceRunning)
}

// The images that a lease prefetches are pulled without an instance, once they are Ready.
func TestPrefetch(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.PrefetchImages = []string{"macos-26", "macos-9"} })
	image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(r.ctx, "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	_, err = r.macrack.ImageV1alpha1().MacOSImages().UpdateStatus(r.ctx, image, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.waitImage("macos-26", "sha256:26")

	// An image that was created again under its name is another image.
	require.NoError(t, r.macrack.ImageV1alpha1().MacOSImages().Delete(r.ctx, "macos-26", metav1.DeleteOptions{}))
	_, err = r.macrack.ImageV1alpha1().MacOSImages().Create(r.ctx, &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "macos-26"},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Digest: "sha256:26.1"}, DiskSize: image.Spec.DiskSize},
		Status:     imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady, Digest: "sha256:26.1"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.lease(tenant, "lease-2")
	r.waitImage("macos-26", "sha256:26.1")
}

// A prefetched image that does not exist is reported once for each lease.
func TestPrefetchOfNoImage(t *testing.T) {
	r := newRack(t)
	events := func() (found []corev1.Event) {
		list, err := r.kube.CoreV1().Events(tenant).List(r.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, event := range list.Items {
			if event.InvolvedObject.Kind == "MacNodeLease" {
				found = append(found, event)
			}
		}
		return found
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.PrefetchImages = []string{"macos-9"} })
	r.eventually(func() bool { return len(events()) == 1 }, func() any { return events() })
	event := events()[0]
	assert.Equal(t, "ImageNotFound", event.Reason)
	assert.Equal(t, "MacOSImage macos-9 of spec.prefetchImages does not exist; see kubectl get macosimages", event.Message)
	assert.Equal(t, "uid-lease-1", string(event.InvolvedObject.UID))
	for range 5 {
		require.NoError(t, r.agent.prefetcher.Reconcile(r.ctx, "macos-9"))
	}
	r.lease(tenant, "lease-2")
	r.eventually(func() bool { return len(events()) == 2 }, func() any { return events() })
	assert.EqualValues(t, []int32{1, 1}, []int32{events()[0].Count, events()[1].Count})
}

// waitImage waits until the Mac has this one image.
func (r *rack) waitImage(name, digest string) {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		images := r.macNode().Status.Images
		if assert.Len(c, images, 1) {
			assert.Equal(c, name, images[0].Name)
			assert.Equal(c, digest, images[0].Digest)
		}
	}, time.Minute, 20*time.Millisecond)
}
