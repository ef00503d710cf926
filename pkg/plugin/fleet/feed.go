package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/plugin/cmdutil"
)

const (
	// patience is the time without an answer after which a watch gives up.
	patience = 30 * time.Second
	// retryAfter is the time between two attempts.
	retryAfter = time.Second
)

// A feed holds the objects of one resource, as far as the user may list them.
type feed struct {
	resource cmdutil.Resource
	// namespaces are tried in order; the first one that the user may list is used.
	namespaces []string
	list       func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error)
	watch      func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	clock      clock.WithTicker

	// version is that of the last list or event; listed is false if a list is needed.
	version   string
	listed    bool
	namespace string

	mu      sync.Mutex
	objects map[types.NamespacedName]runtime.Object
	// notice states which objects are not shown.
	notice string
	// problem is the last failure, until the server answers again; answered is its last answer.
	problem  error
	answered time.Time
}

// sync lists the objects. A missing right is a notice, not an error.
func (f *feed) sync(ctx context.Context) error {
	notice := ""
	for _, namespace := range f.namespaces {
		list, err := f.list(ctx, namespace, metav1.ListOptions{})
		resource := f.resource.In(namespace)
		if apierrors.IsForbidden(err) {
			if notice == "" {
				notice = resource.NotShown("list")
			}
			continue
		}
		if err != nil {
			return resource.Explain("list", err)
		}
		f.namespace = namespace
		if notice != "" {
			notice = fmt.Sprintf("%s of other namespaces are not shown: you may not %s in all namespaces", f.resource.Name, f.baseRight())
		}
		return f.replace(list, notice)
	}
	f.deny(notice)
	return nil
}

func (f *feed) baseRight() string {
	r := f.resource
	r.Namespaced = false
	return r.Right("list")
}

func (f *feed) replace(list runtime.Object, notice string) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	objects := make(map[types.NamespacedName]runtime.Object, len(items))
	for _, item := range items {
		objects[keyOf(item)] = item
	}
	f.listed, f.version = true, accessor.GetResourceVersion()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects, f.notice = objects, notice
	f.problem, f.answered = nil, f.clock.Now()
	return nil
}

func (f *feed) deny(notice string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects, f.notice = nil, notice
}

func keyOf(obj runtime.Object) types.NamespacedName {
	m, err := meta.Accessor(obj)
	if err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// denied reports whether the user may not list the resource in any of the namespaces.
func (f *feed) denied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects == nil
}

// follow keeps the objects current after sync, until ctx is done. It calls changed after each
// change. It returns an error if the server has not answered for some time.
func (f *feed) follow(ctx context.Context, changed func()) error {
	for !f.denied() {
		err := f.observe(ctx, changed)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if gone := f.fail(err); gone != nil {
				return gone
			}
			changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.clock.After(retryAfter):
		}
	}
	return nil
}

// fail records a failure. It returns an error if the server has not answered for some time, or if
// another attempt cannot help.
func (f *feed) fail(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem = err
	if silence := f.clock.Since(f.answered); silence >= patience {
		return fmt.Errorf("the server has not answered for %s: %w", cmdutil.Span(silence), err)
	}
	if apierrors.IsUnauthorized(err) {
		return err
	}
	return nil
}

// observe lists the objects if necessary, and watches them until the watch ends.
func (f *feed) observe(ctx context.Context, changed func()) error {
	if !f.listed {
		if err := f.sync(ctx); err != nil {
			return err
		}
		changed()
		if f.denied() {
			return nil
		}
	}
	w, err := f.watch(ctx, f.namespace, metav1.ListOptions{ResourceVersion: f.version, AllowWatchBookmarks: true})
	if err != nil {
		f.listed = false
		return ignoreExpired(err)
	}
	defer w.Stop()
	f.succeed()
	defer f.heard() // a quiet watch has lasted until now
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			f.listed = false
			return ignoreExpired(apierrors.FromObject(event.Object))
		}
		f.apply(event)
		changed()
	}
	return nil
}

// ignoreExpired returns nil for a watch that must start with a new list.
func ignoreExpired(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	return err
}

func (f *feed) succeed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem, f.answered = nil, f.clock.Now()
}

func (f *feed) heard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = f.clock.Now()
}

func (f *feed) apply(event watch.Event) {
	m, err := meta.Accessor(event.Object)
	if err != nil {
		return
	}
	f.version = m.GetResourceVersion()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem, f.answered = nil, f.clock.Now()
	switch event.Type {
	case watch.Added, watch.Modified:
		f.objects[keyOf(event.Object)] = event.Object
	case watch.Deleted:
		delete(f.objects, keyOf(event.Object))
	}
}

// read returns the objects, and what is wrong.
func (f *feed) read() (objects []runtime.Object, notice string, problem error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, obj := range f.objects {
		objects = append(objects, obj)
	}
	return objects, f.notice, f.problem
}
