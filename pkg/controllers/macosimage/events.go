package macosimage

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

// describe returns the Event for a new result of an image's verification. The reason is empty if
// there is no new result.
func describe(before, after *imagev1alpha1.MacOSImage) (eventType, reason, message string) {
	if before == nil || after == nil || before.UID != after.UID {
		return "", "", ""
	}
	oldReady := meta.FindStatusCondition(before.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
	newReady := meta.FindStatusCondition(after.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
	switch {
	case newReady == nil || newReady.Reason == imagev1alpha1.ReasonVerifying,
		oldReady != nil && oldReady.Reason == newReady.Reason && oldReady.ObservedGeneration == newReady.ObservedGeneration:
		return "", "", ""
	case after.Status.Phase == imagev1alpha1.MacOSImageReady:
		return corev1.EventTypeNormal, newReady.Reason, cmp.Or(newReady.Message, "Manifest verified in its registry")
	}
	return corev1.EventTypeWarning, newReady.Reason, newReady.Message
}
