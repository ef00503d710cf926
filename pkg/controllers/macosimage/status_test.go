package macosimage

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

func anImage(reference, digest string, status imagev1alpha1.MacOSImageStatus) *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "tahoe"},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: reference, Digest: digest}},
		Status:     status,
	}
}

func aMac(serial string, images ...rackv1alpha1.CachedImage) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		Spec:   rackv1alpha1.MacNodeSpec{SerialNumber: serial},
		Status: rackv1alpha1.MacNodeStatus{Images: images},
	}
}

func TestReconcile(t *testing.T) {
	const ref = "registry.example.com/macos/26:xcode-26"
	pending := imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImagePending}
	ready := func(size int64, serials ...string) imagev1alpha1.MacOSImageStatus {
		return imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady, Digest: digestA, SizeBytes: size, ReplicatedOn: serials}
	}
	failed := func(message string) imagev1alpha1.MacOSImageStatus {
		return imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageFailed, Message: message}
	}
	held := func(name, digest string, size int64) rackv1alpha1.CachedImage {
		return rackv1alpha1.CachedImage{Name: name, Digest: digest, SizeBytes: size}
	}

	for _, tt := range []struct {
		name  string
		image *imagev1alpha1.MacOSImage
		macs  []*rackv1alpha1.MacNode
		want  *imagev1alpha1.MacOSImageStatus
	}{
		{name: "gone"},
		{name: "new", image: anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}), want: new(ready(0))},
		{name: "pending", image: anImage(ref, digestA, pending), want: new(ready(0))},
		{name: "mended", image: anImage(ref, digestA, failed("why")), want: new(ready(0))},
		{name: "unchanged", image: anImage(ref, digestA, ready(0))},
		{name: "ready is final", image: anImage("?", digestA, ready(0))},
		{name: "no digest", image: anImage(ref, "", pending), want: new(failed(`spec.source.digest "" is not sha256: and 64 hexadecimal digits, so the content cannot be verified`))},
		{name: "a digest of another kind", image: anImage(ref, "sha512:"+strings.Repeat("a", 128), pending),
			want: new(failed(`spec.source.digest "sha512:` + strings.Repeat("a", 128) + `" is not sha256: and 64 hexadecimal digits, so the content cannot be verified`))},
		{name: "no reference", image: anImage("tahoe", digestA, pending),
			want: new(failed(`spec.source.reference "tahoe" is not an OCI reference such as registry.example.com/macos/26:xcode-26: invalid reference: missing registry or repository`))},
		{name: "pinned twice", image: anImage("registry.example.com/macos/26@"+digestA, digestA, pending), want: new(ready(0))},
		{name: "pinned to two things", image: anImage("registry.example.com/macos/26@"+digestB, digestA, pending),
			want: new(failed("spec.source.reference names the digest " + digestB + ", but spec.source.digest is " + digestA))},
		{
			name: "held by some", image: anImage(ref, digestA, ready(0)),
			macs: []*rackv1alpha1.MacNode{
				aMac("S-2", held("tahoe", digestA, 40)), aMac("S-1", held("sonoma", digestA, 90), held("tahoe", digestA, 50)),
				aMac("S-3", held("tahoe", digestB, 60)), aMac("S-4", held("sonoma", digestA, 70)), aMac("S-5"),
			},
			want: new(ready(50, "S-1", "S-2")),
		},
		{name: "held by the same as before", image: anImage(ref, digestA, ready(50, "S-1")), macs: []*rackv1alpha1.MacNode{aMac("S-1", held("tahoe", digestA, 50))}},
		{name: "held by none any more", image: anImage(ref, digestA, ready(50, "S-1")), macs: []*rackv1alpha1.MacNode{aMac("S-1")}, want: new(ready(50))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var written *imagev1alpha1.MacOSImageStatus
			original := tt.image.DeepCopy()
			r := &reconciler{
				getImage: func(name string) (*imagev1alpha1.MacOSImage, error) {
					if tt.image == nil {
						return nil, apierrors.NewNotFound(imagev1alpha1.Resource("macosimages"), name)
					}
					return tt.image, nil
				},
				listMacs: func() ([]*rackv1alpha1.MacNode, error) { return tt.macs, nil },
				updateState: func(_ context.Context, _, image *imagev1alpha1.MacOSImage) error {
					written = &image.Status
					return nil
				},
			}
			due, err := r.reconcile(t.Context(), "tahoe")
			require.NoError(t, err)
			assert.Zero(t, due)
			assert.Equal(t, tt.want, written)
			assert.Equal(t, original, tt.image, "the cache was changed")
		})
	}
}

func TestChangedImages(t *testing.T) {
	a, b := rackv1alpha1.CachedImage{Name: "a", Digest: digestA}, rackv1alpha1.CachedImage{Name: "b", Digest: digestA}
	newA := a
	newA.Digest = digestB
	for _, tt := range []struct {
		name          string
		before, after *rackv1alpha1.MacNode
		want          []string
	}{
		{"new", nil, aMac("S", b, a), []string{"a", "b"}},
		{"gone", aMac("S", a), nil, []string{"a"}},
		{"unchanged", aMac("S", a, b), aMac("S", b, a), nil},
		{"one came, one went", aMac("S", a), aMac("S", b), []string{"a", "b"}},
		{"another digest", aMac("S", a, b), aMac("S", newA, b), []string{"a"}},
	} {
		assert.Equal(t, tt.want, changedImages(tt.before, tt.after), tt.name)
	}
}
