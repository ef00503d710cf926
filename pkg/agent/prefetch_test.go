package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// The images that a lease asks for beforehand are fetched without any instance, once they are Ready.
func TestPrefetch(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.PrefetchImages = []string{"macos-26", "macos-9"} })
	image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(r.ctx, "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	_, err = r.macrack.ImageV1alpha1().MacOSImages().UpdateStatus(r.ctx, image, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		images := r.macNode().Status.Images
		if assert.Len(c, images, 1) {
			assert.Equal(c, "macos-26", images[0].Name)
			assert.Equal(c, "sha256:26", images[0].Digest)
		}
	}, time.Minute, 20*time.Millisecond)
}
