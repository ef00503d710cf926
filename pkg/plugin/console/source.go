package console

import (
	"context"
	"errors"
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

	namespace string
	// failure is the error of the last request, or nil.
	failure error
	// notice states which objects are not shown.
	notice string
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
		s.namespace, s.failure, s.notice = namespace, nil, notice
		reflector := cache.NewReflectorWithOptions(s.listWatch(), s.example, modelStore{s.model, s.kind}, cache.ReflectorOptions{Name: string(s.kind)})
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && s.failure == nil {
			s.failed(err)
		}
		if !apierrors.IsForbidden(s.failure) {
			return false
		}
		resource := s.resource
		resource.Namespace = namespace
		denied = append(denied, resource.NotShown("list"))
		notice = s.resource.Name + " of other namespaces are not shown: you may not " + resource.Right("list")
	}
	s.model.deny(s.kind, denied[0])
	return true
}

func (s *source) listWatch() cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			list, err := s.list(ctx, s.namespace, opts)
			if err != nil {
				s.failed(err)
				return nil, err
			}
			s.answered()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := s.watch(ctx, s.namespace, opts)
			if err != nil {
				s.failed(err)
				return nil, endWatch(err)
			}
			s.answered()
			return w, nil
		},
	}, s.client)
}

// endWatch hides errors of connections from the reflector, which would repeat the request with
// ever longer pauses.
func endWatch(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && !apierrors.IsTooManyRequests(err) {
		return err
	}
	return errors.New(err.Error())
}

func (s *source) answered() {
	s.failure = nil
	s.model.answered(s.kind, s.notice)
}

func (s *source) failed(err error) {
	s.failure = err
	if apierrors.IsForbidden(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) || errors.Is(err, context.Canceled) {
		return
	}
	s.model.failed(s.kind, s.resource.Explain("list", err))
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
