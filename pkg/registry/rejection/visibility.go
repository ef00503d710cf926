package rejection

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
)

// A Filter returns a field selector for the objects that the user of a request can see; nil selects
// all objects. It applies to all verbs.
type Filter func(ctx context.Context) (fields.Selector, error)

// Get is [registry.Store.Get], of an object visible to the user.
func (s *Store) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	selector, err := s.selector(ctx)
	if err != nil {
		return nil, err
	}
	return s.get(ctx, name, options, selector)
}

// get returns an object that a selector selects; nil selects all objects.
func (s *Store) get(ctx context.Context, name string, options *metav1.GetOptions, selector fields.Selector) (runtime.Object, error) {
	obj, err := s.Store.Get(ctx, name, options)
	if err != nil || selector == nil {
		return obj, err
	}
	predicate := s.PredicateFunc(labels.Everything(), selector)
	if exists, err := predicate.Matches(obj); err != nil || !exists {
		return nil, apierrors.NewNotFound(s.DefaultQualifiedResource, name)
	}
	return obj, nil
}

// List is [registry.Store.List], of the objects visible to the user.
func (s *Store) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	options, err := s.filtered(ctx, options)
	if err != nil {
		return nil, err
	}
	return s.Store.List(ctx, options)
}

// Watch is [registry.Store.Watch], of the objects visible to the user.
func (s *Store) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	options, err := s.filtered(ctx, options)
	if err != nil {
		return nil, err
	}
	return s.Store.Watch(ctx, options)
}

// DeleteCollection is [registry.Store.DeleteCollection], of the objects visible to the user.
func (s *Store) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	list, err := s.filtered(ctx, list)
	if err != nil {
		return nil, err
	}
	return s.Store.DeleteCollection(ctx, validate, options, list)
}

func (s *Store) selector(ctx context.Context) (fields.Selector, error) {
	if s.Filter == nil {
		return nil, nil
	}
	return s.Filter(ctx)
}

// filtered returns options limited to the objects visible to the user.
func (s *Store) filtered(ctx context.Context, options *metainternalversion.ListOptions) (*metainternalversion.ListOptions, error) {
	selector, err := s.selector(ctx)
	if err != nil || selector == nil {
		return options, err
	}
	filtered := metainternalversion.ListOptions{}
	if options != nil {
		filtered = *options
	}
	if filtered.FieldSelector != nil {
		selector = fields.AndSelectors(filtered.FieldSelector, selector)
	}
	filtered.FieldSelector = selector
	return &filtered, nil
}

// checkVisible returns an error unless the object to write is visible to the user, or may be
// created. An object keeps its identity, so it cannot become visible to another user before the
// write.
func (s *Store) checkVisible(ctx context.Context, name string, mayCreate bool) error {
	selector, err := s.selector(ctx)
	if err != nil || selector == nil {
		return err
	}
	_, err = s.get(ctx, name, &metav1.GetOptions{}, selector)
	if !mayCreate || !apierrors.IsNotFound(err) {
		return err
	}
	if _, stored := s.Store.Get(ctx, name, &metav1.GetOptions{}); stored == nil {
		return apierrors.NewAlreadyExists(s.DefaultQualifiedResource, name)
	}
	return nil
}
