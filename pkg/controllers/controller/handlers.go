package controller

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

type panicError struct{ value any }

func (e panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Handlers returns informer handlers that call changed with the object before and after each
// change. before is nil for a new object, after for a deleted one.
func Handlers[T any](changed func(before, after *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if after, ok := obj.(*T); ok {
				changed(nil, after)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			before, ok1 := oldObj.(*T)
			after, ok2 := newObj.(*T)
			if ok1 && ok2 {
				changed(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if before, ok := obj.(*T); ok {
				changed(before, nil)
			}
		},
	}
}

// Newest returns after, or before if the object was deleted.
func Newest[T any](before, after *T) *T {
	if after != nil {
		return after
	}
	return before
}

// IndexFunc returns an index of informers of *T by the keys that f returns.
func IndexFunc[T any](f func(*T) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if t, ok := obj.(*T); ok {
			return f(t), nil
		}
		return nil, nil
	}
}

// ByIndex returns the objects under key in an index of an informer. They are shared: do not change
// them.
func ByIndex[T any](indexer cache.Indexer, index, key string) ([]*T, error) {
	objs, err := indexer.ByIndex(index, key)
	if err != nil {
		return nil, err
	}
	list := make([]*T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(*T); ok {
			list = append(list, t)
		}
	}
	return list, nil
}
