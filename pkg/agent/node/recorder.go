package node

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// updatedReason is the reason of the library's Event for each change of a pod's metadata. The Event
// has no new information, and frequent changes would cost the agent as many requests.
const updatedReason = "ProviderUpdateSuccess"

// podRecorder drops the library's Events that have no information.
type podRecorder struct {
	record.EventRecorder
}

func (r podRecorder) Event(object runtime.Object, eventType, reason, message string) {
	if reason != updatedReason {
		r.EventRecorder.Event(object, eventType, reason, message)
	}
}
