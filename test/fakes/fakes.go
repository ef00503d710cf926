// Package fakes makes client-go's fake clients behave like a server where tests depend on it.
package fakes

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Client is a fake clientset.
type Client interface {
	PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	Tracker() clienttesting.ObjectTracker
}

// Store writes to the objects of a fake clientset with optimistic locking. Fake clientsets have
// none: a writer would overwrite the changes of others since its read.
type Store struct {
	tracker clienttesting.ObjectTracker
	judges  []Judge
	mu      sync.Mutex
	version int
}

// A Judge changes or refuses a write of an object, like a registry.
type Judge func(old, new runtime.Object) error

// RefuseStale makes updates of a stale object through client fail with Conflict. Patches apply to
// the stored object, and fail with Conflict only if they name another UID or resource version.
func RefuseStale(client Client, judges ...Judge) *Store {
	s := &Store{tracker: client.Tracker(), judges: judges, version: 1000}
	client.PrependReactor("update", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj := action.(clienttesting.UpdateAction).GetObject()
		return true, obj, s.Update(action.GetResource(), obj)
	})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj, err := s.patch(action.(clienttesting.PatchAction))
		return true, obj, err
	})
	return s
}

// Update replaces an object and gives obj its new resource version. It fails with Conflict if obj
// is stale.
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
	return s.replace(gvr, stored, obj)
}

func (s *Store) replace(gvr schema.GroupVersionResource, stored, obj runtime.Object) error {
	accessor, err := meta.Accessor(obj)
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
	for _, judge := range s.judges {
		if err := judge(stored, obj); err != nil {
			return err
		}
	}
	if equality.Semantic.DeepEqual(stored, obj) {
		return nil // no change, no write
	}
	s.version++
	accessor.SetResourceVersion(strconv.Itoa(s.version))
	return s.tracker.Update(gvr, obj, accessor.GetNamespace())
}

func (s *Store) patch(action clienttesting.PatchAction) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := s.tracker.Get(action.GetResource(), action.GetNamespace(), action.GetName())
	if err != nil {
		return nil, err
	}
	obj, err := Patched(stored, action)
	if err != nil {
		return nil, err
	}
	was, err := meta.Accessor(stored)
	if err != nil {
		return nil, err
	}
	is, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if was.GetUID() != is.GetUID() {
		return nil, apierrors.NewConflict(action.GetResource().GroupResource(), action.GetName(), errors.New("another object has this name"))
	}
	return obj, s.replace(action.GetResource(), stored, obj)
}

// Patched returns the result of a strategic merge patch of an object.
func Patched(stored runtime.Object, action clienttesting.PatchAction) (runtime.Object, error) {
	if action.GetPatchType() != types.StrategicMergePatchType {
		return nil, fmt.Errorf("a patch of type %s is not supported", action.GetPatchType())
	}
	before, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	obj := reflect.New(reflect.TypeOf(stored).Elem()).Interface().(runtime.Object)
	after, err := strategicpatch.StrategicMergePatch(before, action.GetPatch(), obj)
	if err != nil {
		return nil, err
	}
	return obj, json.Unmarshal(after, obj)
}

// CopyWatched gives watchers copies of the objects. A fake clientset shares its own objects, which
// an informer's transform changes while others read them.
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
