package testutil

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// Recorder keeps the Events in memory.
type Recorder struct {
	mu     sync.Mutex
	events []string
}

// Event implements record.EventRecorder.
func (r *Recorder) Event(object runtime.Object, eventType, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", eventType, reason, accessor.GetName(), message))
}

// Eventf implements record.EventRecorder.
func (r *Recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (r *Recorder) AnnotatedEventf(object runtime.Object, _ map[string]string, eventType, reason, format string, args ...any) {
	r.Eventf(object, eventType, reason, format, args...)
}

// Drain returns the Events since the last call, as "type reason object: message".
func (r *Recorder) Drain() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}
