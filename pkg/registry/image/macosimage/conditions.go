package macosimage

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/conditions"
)

// deriveConditions sets Reconciling or Stalled from the phase, and adds Ready to a new image. It
// does not change the Ready of the controllers, even if the spec changes: observedGeneration then
// shows that it is stale, and a late status patch for the old spec is refused.
func deriveConditions(i *image.MacOSImage, now time.Time) {
	list := &i.Status.Conditions
	if meta.FindStatusCondition(*list, image.MacOSImageReadyCondition) == nil {
		set(list, now, i.Generation, metav1.Condition{Type: image.MacOSImageReadyCondition, Status: metav1.ConditionUnknown, Reason: image.ReasonVerifying,
			Message: "the image has not been verified yet"})
	}
	ready := conditions.Get(*list, image.MacOSImageReadyCondition)
	abnormal := metav1.Condition{Type: conditions.Reconciling, Status: metav1.ConditionTrue, Reason: ready.Reason, Message: ready.Message}
	switch {
	case i.Status.Phase == image.MacOSImageFailed:
		abnormal.Type = conditions.Stalled
	case ready.Status == metav1.ConditionTrue:
		abnormal.Type = ""
	case ready.ObservedGeneration != i.Generation:
		abnormal.Reason, abnormal.Message = image.ReasonVerifying, "the changed spec has not been verified yet"
	}
	for _, name := range []string{conditions.Reconciling, conditions.Stalled} {
		if name == abnormal.Type {
			set(list, now, i.Generation, abnormal)
		} else {
			meta.RemoveStatusCondition(list, name)
		}
	}
	conditions.Fit(*list)
}

func set(list *[]metav1.Condition, now time.Time, generation int64, c metav1.Condition) {
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
	meta.SetStatusCondition(list, c)
}
