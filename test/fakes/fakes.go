// Package fakes makes the fake clients of client-go behave as a server does where a test depends on it.
package fakes

import (
	"errors"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Client is a fake clientset.
type Client interface {
	PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	Tracker() clienttesting.ObjectTracker
}

// Store writes to the objects of a fake clientset with optimistic locking, which fake clientsets do not have: without it,
// a writer overwrites what another one has written since it read.
type Store struct {
	tracker clienttesting.ObjectTracker
	mu      sync.Mutex
	version int
}

// RefuseStale makes the updates through client answer Conflict if they are of a stale object.
func RefuseStale(client Client) *Store {
	s := &Store{tracker: client.Tracker(), version: 1000}
	client.PrependReactor("update", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj := action.(clienttesting.UpdateAction).GetObject()
		return true, obj, s.Update(action.GetResource(), obj)
	})
	return s
}

// Update replaces an object and gives obj its new resource version. It fails with Conflict if obj is stale.
func (s *Store) Update(gvr schema.GroupVersionResource, obj runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	stored, err := s.tracker.Get(gvr, accessor.GetNamespace(), accessor.GetName())
	if err != nil {
		return err
	}
	current, err := meta.Accessor(stored)
	if err != nil {
		return err
	}
	if current.GetResourceVersion() != accessor.GetResourceVersion() {
		return apierrors.NewConflict(gvr.GroupResource(), accessor.GetName(), errors.New("stale"))
	}
	s.version++
	accessor.SetResourceVersion(strconv.Itoa(s.version))
	return s.tracker.Update(gvr, obj, accessor.GetNamespace())
}

// CopyWatched gives watchers copies of the objects. A fake clientset hands them its own, which an informer's transform then changes
// while others read them.
func CopyWatched(client Client) {
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace(), action.(clienttesting.WatchActionImpl).ListOptions)
		if err != nil {
			return true, nil, err
		}
		return true, watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
			event.Object = event.Object.DeepCopyObject()
			return event, true
		}), nil
	})
}
