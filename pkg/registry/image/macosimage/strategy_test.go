package macosimage

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/image/install"
	"macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
	"macrack.io/macrack/pkg/registry/values"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func stored(phase image.MacOSImagePhase) *image.MacOSImage {
	return &image.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "macos-26", UID: "u1", ResourceVersion: "1", Generation: 1},
		Spec: image.MacOSImageSpec{
			Contents: []image.ImageContent{{Name: "macOS", Version: "26.1"}, {Name: "guest-agent", Version: "0.4.0"}},
			Source:   image.ImageSource{Reference: "registry.example.com/macos:26.1", Digest: digest},
			DiskSize: scalar.MustParse("60Gi"),
		},
		Status: image.MacOSImageStatus{Phase: phase, Message: "m", Digest: digest, SizeBytes: 1, ReplicatedOn: []string{"C07DR00AQ6NV"}},
	}
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme())
	i := stored(image.MacOSImageReady)
	i.ResourceVersion, i.Generation = "", 7
	require.NoError(t, strategytest.Create(t, strategy, i))
	assert.Equal(t, image.MacOSImageStatus{Phase: image.MacOSImagePending}, i.Status)
	assert.EqualValues(t, 1, i.Generation)

	i = stored(image.MacOSImageFailed)
	i.Labels = map[string]string{"a": "b"}
	i.Status = image.MacOSImageStatus{}
	require.NoError(t, strategytest.Update(t, strategy, i, stored(image.MacOSImageFailed)))
	assert.Equal(t, stored(image.MacOSImageFailed).Status, i.Status)
	assert.EqualValues(t, 1, i.Generation)

	i.Spec.DiskSize = scalar.MustParse("80Gi")
	require.NoError(t, strategytest.Update(t, strategy, i, stored(image.MacOSImageFailed)))
	assert.Equal(t, image.MacOSImageStatus{Phase: image.MacOSImagePending, SizeBytes: 1, ReplicatedOn: []string{"C07DR00AQ6NV"}}, i.Status, "a new spec is checked anew")
	assert.EqualValues(t, 2, i.Generation)

	assert.ErrorContains(t, strategytest.Update(t, strategy, i, stored(image.MacOSImageReady)), "field is immutable")
}

func TestStatusStrategy(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	i := stored(image.MacOSImageReady)
	i.Spec.DiskSize = scalar.MustParse("80Gi")
	i.Status.SizeBytes = 2
	require.NoError(t, strategytest.Update(t, strategy, i, stored(image.MacOSImagePending)))
	assert.Equal(t, stored("").Spec, i.Spec)
	assert.Equal(t, image.MacOSImageReady, i.Status.Phase)
	assert.EqualValues(t, 2, i.Status.SizeBytes)
	strategytest.KeepsMetadata(t, strategy, stored(image.MacOSImageReady))
}

// TestReportFits checks that an oversized message of a registry does not prevent an image from
// becoming Failed.
func TestReportFits(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	i := stored(image.MacOSImageFailed)
	i.Status.Digest = ""
	i.Status.Message = "\x00\u202e" + strings.Repeat("m", 1<<20)
	i.Status.Conditions = []metav1.Condition{{Type: image.MacOSImageReadyCondition, Status: metav1.ConditionFalse, Reason: "Malformed", Message: i.Status.Message, LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}}
	require.NoError(t, strategytest.Update(t, strategy, i, stored(image.MacOSImagePending)))
	assert.Empty(t, values.Check(i), "it can be stored")
	assert.Contains(t, i.Status.Message, `\x00\u202em`)
}

func TestResetFields(t *testing.T) {
	strategy := NewStrategy(newScheme())
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	assert.True(t, strategy.GetResetFields()[version].Has(fieldpath.MakePathOrDie("status")))
	assert.True(t, NewStatusStrategy(strategy).GetResetFields()[version].Has(fieldpath.MakePathOrDie("spec")))
}

func TestSelectableFields(t *testing.T) {
	_, set, err := GetAttrs(stored(image.MacOSImageReady))
	require.NoError(t, err)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("MacOSImage"), set)
	assert.Len(t, set, 2)
}
