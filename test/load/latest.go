package main

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// latest holds the objects of a watch by name, and wakes those who wait for one.
type latest[T metav1.Object] struct {
	mu      sync.Mutex
	objects map[string]T
	changed chan struct{}
}

func newLatest[T metav1.Object]() *latest[T] {
	return &latest[T]{objects: map[string]T{}, changed: make(chan struct{})}
}

// OnAdd stores an added object.
func (l *latest[T]) OnAdd(obj any, _ bool) { l.set(obj) }

// OnUpdate stores a changed object.
func (l *latest[T]) OnUpdate(_, obj any) { l.set(obj) }

// OnDelete forgets a deleted object.
func (l *latest[T]) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	l.change(func() { delete(l.objects, obj.(T).GetName()) })
}

func (l *latest[T]) set(obj any) {
	object := obj.(T)
	l.change(func() { l.objects[object.GetName()] = object })
}

func (l *latest[T]) change(apply func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	apply()
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until the object of the name exists and is done.
func (l *latest[T]) await(ctx context.Context, name string, done func(T) bool) error {
	return l.until(ctx, name, func(object T, exists bool) bool { return exists && done(object) })
}

// awaitGone waits until no object has the name.
func (l *latest[T]) awaitGone(ctx context.Context, name string) error {
	return l.until(ctx, name, func(_ T, exists bool) bool { return !exists })
}

func (l *latest[T]) until(ctx context.Context, name string, done func(object T, exists bool) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		l.mu.Lock()
		object, exists := l.objects[name]
		changed := l.changed
		l.mu.Unlock()
		if done(object, exists) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not reach the wanted state: %w", name, ctx.Err())
		case <-changed:
		}
	}
}
