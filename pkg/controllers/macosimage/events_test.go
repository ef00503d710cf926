package macosimage

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

func TestEvents(t *testing.T) {
	image := func(phase imagev1alpha1.MacOSImagePhase, reason, message string, generation int64) *imagev1alpha1.MacOSImage {
		i := &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "tahoe", UID: "1"}, Status: imagev1alpha1.MacOSImageStatus{Phase: phase}}
		i.Status.Conditions = []metav1.Condition{{Type: "Ready", Reason: reason, Message: message, ObservedGeneration: generation}}
		return i
	}
	verifying, unknown := image("Pending", "Verifying", "", 1), image("Failed", "ManifestUnknown", "no such manifest", 1)
	other := unknown.DeepCopy()
	other.UID = "2"
	for name, tt := range map[string]struct {
		before, after *imagev1alpha1.MacOSImage
		want          [3]string
	}{
		"new":            {nil, unknown, [3]string{}},
		"deleted":        {unknown, nil, [3]string{}},
		"another":        {other, unknown, [3]string{}},
		"same":           {unknown, unknown, [3]string{}},
		"no condition":   {verifying, &imagev1alpha1.MacOSImage{ObjectMeta: verifying.ObjectMeta}, [3]string{}},
		"being verified": {unknown, verifying, [3]string{}},
		"verified":       {verifying, image("Ready", "Verified", "", 1), [3]string{"Normal", "Verified", "Manifest verified in its registry"}},
		"by a Mac":       {verifying, image("Ready", "Verified", "Verified by Mac mac-1", 1), [3]string{"Normal", "Verified", "Verified by Mac mac-1"}},
		"unknown":        {verifying, unknown, [3]string{"Warning", "ManifestUnknown", "no such manifest"}},
		"unknown again":  {unknown, image("Failed", "ManifestUnknown", "nor this", 2), [3]string{"Warning", "ManifestUnknown", "nor this"}},
	} {
		t.Run(name, func(t *testing.T) {
			eventType, reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.want, [3]string{eventType, reason, message})
		})
	}
}
