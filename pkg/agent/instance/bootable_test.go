package instance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestUnbootableHere(t *testing.T) {
	for _, tc := range []struct {
		model, macOS string
		refused      bool
	}{
		{"Mac16,10", "13.3.1", true},
		{"Mac16,10", "12", true},
		{"Mac17,1", "13.0", true},
		{"Mac16,10", "13.4", false},
		{"Mac16,10", "26.1", false},
		{"Mac14,3", "12.6", false},
		{"Macmini9,1", "12.6", false},
		{"Mac16,10", "Sonoma", false},
		{"", "12.6", false},
	} {
		image := &imagev1alpha1.MacOSImage{
			ObjectMeta: metav1.ObjectMeta{Name: "old"},
			Spec: imagev1alpha1.MacOSImageSpec{Contents: []imagev1alpha1.ImageContent{
				{Name: imagev1alpha1.ContentXcode, Version: "13.0"}, {Name: imagev1alpha1.ContentMacOS, Version: tc.macOS},
			}},
		}
		why := unbootableHere(host.Info{ModelIdentifier: tc.model}, image)
		assert.Equal(t, tc.refused, why != "", "%+v: %s", tc, why)
	}
}

func TestTooSmall(t *testing.T) {
	class := &instancev1alpha1.InstanceClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: instancev1alpha1.InstanceClassSpec{
		Resources: instancev1alpha1.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi")},
	}}
	assert.Empty(t, tooSmall(class, images.Cached{Name: "any"}))
	assert.Empty(t, tooSmall(class, images.Cached{Name: "tart", CPUMin: 4, MemoryMin: 8 << 30}))
	assert.Equal(t, "InstanceClass small has 4 CPUs, and MacOSImage tart needs at least 6; use a larger class", tooSmall(class, images.Cached{Name: "tart", CPUMin: 6}))
	assert.Equal(t, "InstanceClass small has 8.0 GiB of memory, and MacOSImage tart needs at least 12.0 GiB; use a larger class", tooSmall(class, images.Cached{Name: "tart", MemoryMin: 12 << 30}))
}
