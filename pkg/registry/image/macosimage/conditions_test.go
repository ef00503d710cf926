package macosimage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
)

func TestDeriveConditions(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	ready := func(status metav1.ConditionStatus, reason string, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: "m", ObservedGeneration: generation}}
	}
	failed := append(ready(metav1.ConditionFalse, "ManifestUnknown", 1),
		metav1.Condition{Type: "Stalled", Status: metav1.ConditionTrue, Reason: "ManifestUnknown", Message: "m", ObservedGeneration: 1})
	for _, tt := range []struct {
		name    string
		phase   image.MacOSImagePhase
		is      []metav1.Condition
		want    []string
		kstatus string
	}{
		{"new", image.MacOSImagePending, nil, []string{"Ready=Unknown Verifying: the image has not been verified yet", "Reconciling=True Verifying: the image has not been verified yet"}, "InProgress"},
		{"tried again", image.MacOSImagePending, ready(metav1.ConditionFalse, "Unreachable", 2), []string{"Ready=False Unreachable: m", "Reconciling=True Unreachable: m"}, "InProgress"},
		{"failed", image.MacOSImageFailed, ready(metav1.ConditionFalse, "ManifestUnknown", 2), []string{"Ready=False ManifestUnknown: m", "Stalled=True ManifestUnknown: m"}, "Failed"},
		{"corrected", image.MacOSImagePending, failed, []string{"Ready=False ManifestUnknown: m", "Reconciling=True Verifying: the changed spec has not been verified yet"}, "InProgress"},
		{"verified", image.MacOSImageReady, ready(metav1.ConditionTrue, "Verified", 2), []string{"Ready=True Verified: m"}, "Current"},
		{"set to Ready", image.MacOSImageReady, nil, []string{"Ready=Unknown Verifying: the image has not been verified yet", "Reconciling=True Verifying: the image has not been verified yet"}, "InProgress"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := stored(tt.phase)
			i.Generation, i.Status.Conditions = 2, tt.is
			deriveConditions(i, noon)
			assert.Equal(t, tt.want, conditionstest.Lines(i.Status.Conditions))
			for _, c := range i.Status.Conditions {
				want := int64(2)
				if c.Type == "Ready" && tt.name == "corrected" {
					want = 1 // what the controllers are about to report of generation 1 must not pass for generation 2
				}
				assert.Equal(t, want, c.ObservedGeneration, c.Type)
			}
			assert.Equal(t, tt.kstatus, conditionstest.KStatus(t, i.ObjectMeta, i.Status.Conditions))

			again := i.DeepCopy()
			deriveConditions(again, noon.Add(time.Hour))
			assert.Equal(t, i, again, "what has not changed is not written again")
		})
	}
}
