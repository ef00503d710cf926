package console

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/plugin/cmdutil"
)

const (
	// retryAfter is the time between two attempts to reach the server.
	retryAfter = time.Second
	// deniedRetry is the time after which a missing right is checked again.
	deniedRetry = 30 * time.Second
)

// A source feeds the objects of one resource into the model, as far as the user may list them.
type source struct {
	kind     Kind
	resource cmdutil.Resource
	// namespaces are tried in order; the first one that the user may list is used.
	namespaces []string
	example    runtime.Object
	// client decides whether lists can be streamed.
	client any
	list   func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error)
	watch  func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	model  *model
	clock  clock.WithTicker
}

// An observation is of one namespace, until its watch ends. A reflector may leave a request behind.
type observation struct {
	*source
	namespace string
	// notice states which objects are not shown.
	notice string

	mu sync.Mutex
	// failure is the error of the last request, or nil.
	failure error
}

// run feeds the model until ctx is done.
func (s *source) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.Discard()) // the page shows the errors
	for ctx.Err() == nil {
		wait := retryAfter
		if s.observe(ctx) {
			wait = deniedRetry
		}
		select {
		case <-ctx.Done():
		case <-s.clock.After(wait):
		}
	}
}

// observe lists and watches the objects until the watch ends. It returns true if the user may list
// them in none of the namespaces.
func (s *source) observe(ctx context.Context) bool {
	var denied []string
	notice := ""
	for _, namespace := range s.namespaces {
		o := &observation{source: s, namespace: namespace, notice: notice}
		reflector := cache.NewReflectorWithOptions(o.listWatch(), s.example, modelStore{s.model, s.kind}, cache.ReflectorOptions{Name: string(s.kind)})
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && o.err() == nil {
			o.failed(err)
		}
		if !apierrors.IsForbidden(o.err()) {
			return false
		}
		resource := s.resource.In(namespace)
		denied = append(denied, resource.NotShown("list"))
		notice = s.resource.Name + " of other namespaces are not shown: you may not " + resource.Right("list")
	}
	s.model.deny(s.kind, denied[0])
	return true
}

func (o *observation) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

func (o *observation) set(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure = err
}

func (o *observation) listWatch() cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			list, err := o.list(ctx, o.namespace, opts)
			if err != nil {
				o.failed(err)
				return nil, err
			}
			o.answered()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := o.watch(ctx, o.namespace, opts)
			if err != nil {
				o.failed(err)
				return nil, endWatch(err)
			}
			o.answered()
			return w, nil
		},
	}, o.client)
}

// endWatch hides errors of connections from the reflector, which would repeat the request with
// ever longer pauses.
func endWatch(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && !apierrors.IsTooManyRequests(err) {
		return err
	}
	return errors.New(err.Error())
}

func (o *observation) answered() {
	o.set(nil)
	o.model.answered(o.kind, o.notice)
}

func (o *observation) failed(err error) {
	o.set(err)
	if apierrors.IsForbidden(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) || errors.Is(err, context.Canceled) {
		return
	}
	o.model.failed(o.kind, o.resource.Explain("list", err))
}

// A modelStore is the part of a model that a reflector writes.
type modelStore struct {
	model *model
	kind  Kind
}

var _ cache.ReflectorStore = modelStore{}

// Add adds an object.
func (s modelStore) Add(obj any) error { s.model.put(s.kind, obj.(runtime.Object)); return nil }

// Update replaces an object.
func (s modelStore) Update(obj any) error { s.model.put(s.kind, obj.(runtime.Object)); return nil }

// Delete removes an object.
func (s modelStore) Delete(obj any) error { s.model.remove(s.kind, obj.(runtime.Object)); return nil }

// Replace replaces all objects of the kind.
func (s modelStore) Replace(objects []any, _ string) error {
	s.model.replace(s.kind, objects)
	return nil
}

// Resync does nothing.
func (modelStore) Resync() error { return nil }
