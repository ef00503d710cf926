package node

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// updatedReason is the reason of the Event by which the library announces each change of a pod's metadata. Whoever changed
// it knows, and a pod that is changed all the time would cost the agent as many requests.
const updatedReason = "ProviderUpdateSuccess"

// podRecorder drops the library's Events that tell nothing.
type podRecorder struct {
	record.EventRecorder
}

func (r podRecorder) Event(object runtime.Object, eventType, reason, message string) {
	if reason != updatedReason {
		r.EventRecorder.Event(object, eventType, reason, message)
	}
}
