package node

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// podRecorder drops the library's Events that are not warnings. They say that the agent has seen a
// pod or a change of its metadata, and cost a request each.
type podRecorder struct {
	record.EventRecorder
}

func (r podRecorder) Event(object runtime.Object, eventType, reason, message string) {
	if eventType != corev1.EventTypeNormal {
		r.EventRecorder.Event(object, eventType, reason, message)
	}
}
