// Package rejection connects the refusal of a request with its record in the ledger.
package rejection

import (
	"context"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/apis/rack"
)

// An Error is a refusal with its record. The API returns the refusal.
type Error struct {
	*apierrors.StatusError
	Record *rack.AuditRecord
}

// Forbidden returns the refusal of a write, with the given cause and record.
func Forbidden(gr schema.GroupResource, name string, cause error, record *rack.AuditRecord) error {
	return &Error{apierrors.NewForbidden(gr, name, cause), record}
}

// Unwrap returns the refusal without its record.
func (e *Error) Unwrap() error { return e.StatusError }

// A Classifier may convert an error from outside the planners, such as a failed validation of an
// object in store, into an [Error]. The name is empty if the object is created.
type Classifier func(ctx context.Context, store rest.Getter, name string, err error) error

// A Store is a [registry.Store] that records its refusals. Filter, if set, hides objects from
// users. Classify may be nil.
type Store struct {
	*registry.Store
	Recorder Recorder
	Filter   Filter
	Classify Classifier
}

// Create is [registry.Store.Create], with refusals recorded.
func (s *Store) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	out, err := s.Store.Create(ctx, obj, validate, options)
	return out, s.check(ctx, "", err, options.DryRun)
}

// Update is [registry.Store.Update], with refusals recorded.
func (s *Store) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if err := s.checkVisible(ctx, name, allowCreate); err != nil {
		return nil, false, err
	}
	info = rest.WrapUpdatedObjectInfo(info, s.refuseOversized)
	out, created, err := s.Store.Update(ctx, name, info, create, update, allowCreate, options)
	return out, created, s.check(ctx, name, err, options.DryRun)
}

// Delete is [registry.Store.Delete], with refusals recorded.
func (s *Store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if err := s.checkVisible(ctx, name, false); err != nil {
		return nil, false, err
	}
	out, gone, err := s.Store.Delete(ctx, name, validate, options)
	return out, gone, s.check(ctx, name, err, options.DryRun)
}

// refuseOversized refuses metadata that would be expensive for the checks of Kubernetes, which run
// first in an update.
func (s *Store) refuseOversized(_ context.Context, obj, oldObj runtime.Object) (runtime.Object, error) {
	new, ok := obj.(metav1.ObjectMetaAccessor)
	old, oldOK := oldObj.(metav1.ObjectMetaAccessor)
	if !ok || !oldOK {
		return obj, nil
	}
	if errs := metadata.Oversized(new, old); len(errs) > 0 {
		kind := schema.GroupKind{Group: s.DefaultQualifiedResource.Group, Kind: reflect.TypeOf(obj).Elem().Name()}
		return nil, apierrors.NewInvalid(kind, new.GetObjectMeta().GetName(), errs)
	}
	return obj, nil
}

func (s *Store) check(ctx context.Context, name string, err error, dryRun []string) error {
	err = clientError(s.DefaultQualifiedResource, name, err)
	if err != nil && s.Classify != nil {
		err = s.Classify(ctx, s, name, err)
	}
	return Check(ctx, s.Recorder, err, dryRun)
}
