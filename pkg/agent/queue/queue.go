// Package queue holds the work queues of the agent.
package queue

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// baseDelay is the wait before the first retry of an item. Each retry doubles it.
const baseDelay = 100 * time.Millisecond

// Kind is a kind of work.
type Kind int

// The kinds of work.
const (
	MacNodeKind Kind = iota
	InstanceKind
	PodKind
	PrefetchKind
)

// Key identifies an object to reconcile.
type Key struct {
	Kind Kind
	types.NamespacedName
}

// MacNode returns the key of the Mac's MacNode.
func MacNode() Key { return Key{Kind: MacNodeKind} }

// Instance returns the key of a MacOSInstance.
func Instance(namespace, name string) Key {
	return Key{InstanceKind, types.NamespacedName{Namespace: namespace, Name: name}}
}

// Pod returns the key of a pod.
func Pod(namespace, name string) Key {
	return Key{PodKind, types.NamespacedName{Namespace: namespace, Name: name}}
}

// Prefetch returns the key of an image to pull in advance.
func Prefetch(image string) Key {
	return Key{PrefetchKind, types.NamespacedName{Name: image}}
}

// Queue is a rate-limited work queue. Its AddAfter measures real time.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	clock clock.Clock
}

// New returns a queue. maxDelay bounds the wait before a retry.
func New[T comparable](c clock.Clock, maxDelay time.Duration) *Queue[T] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[T](baseDelay, maxDelay)
	return &Queue[T]{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(limiter), clock: c}
}

// AddAfterClock adds an item after a wait that is measured by the agent's clock, unless ctx ends
// first.
func (q *Queue[T]) AddAfterClock(ctx context.Context, item T, wait time.Duration) {
	after := q.clock.After(wait)
	go func() {
		select {
		case <-ctx.Done():
		case <-after:
			q.Add(item)
		}
	}()
}
