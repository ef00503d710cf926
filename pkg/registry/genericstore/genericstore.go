// Package genericstore has the REST storage of most kinds: a generic store whose refusals are
// recorded, its discovery information, and the subresource status.
package genericstore

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
)

// Strategy is how the objects of a kind are created, updated and deleted.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// StatusStrategy is how the status of the objects of a kind is updated.
type StatusStrategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// Category is a set of kinds that kubectl can get together.
type Category string

const (
	// Tenants are the kinds that a tenant may list in its namespace, with the catalogue.
	Tenants Category = "macrack"
	// Operators are the kinds that operators alone may list.
	Operators Category = "macrack-admin"
)

// Kind describes the storage of a kind.
type Kind struct {
	Resource   schema.GroupResource
	Singular   string
	ShortNames []string
	// Category is the group of kinds, such as macrack, in which kubectl gets the kind.
	Category Category

	New     func() runtime.Object
	NewList func() runtime.Object

	Strategy Strategy
	// Status is nil if the kind has no subresource status.
	Status StatusStrategy

	Attrs storage.AttrFunc
	Table rest.TableConvertor

	// Index makes lists and watches by a field cheap: an event reaches only the watches with its
	// value of the field. It is nil for a kind without such a field.
	Index *Index

	// Filter hides objects from users; nil hides none.
	Filter rejection.Filter
	// Classify converts errors into recorded rejections; nil converts none.
	Classify rejection.Classifier
	// WarnOnDelete returns a warning of the consequences of deleting an object, or an empty string;
	// nil warns of none.
	WarnOnDelete func(ctx context.Context, name string) (string, error)
}

// Index is a field of a kind by which many clients list and watch, each for another value.
type Index struct {
	// Field is the name of the field in field selectors.
	Field string
	// Value returns the value of the field of an object.
	Value func(obj runtime.Object) string
}

// apply adds the index to the options of a store, and to its predicates.
func (i *Index) apply(store *genericregistry.Store, options *generic.StoreOptions) {
	options.TriggerFunc = storage.IndexerFuncs{i.Field: i.Value}
	options.Indexers = &cache.Indexers{storage.FieldIndex(i.Field): func(obj any) ([]string, error) {
		return []string{i.Value(obj.(runtime.Object))}, nil
	}}
	store.PredicateFunc = func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
		return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: options.AttrFunc, IndexFields: []string{i.Field}}
	}
}

// Options are the dependencies of the storages of all kinds.
type Options struct {
	Typer runtime.ObjectTyper
	// Backend stores the objects, and calls the planners.
	Backend *txn.Backend
	Clock   clock.Clock
	// Recorder records the rejections.
	Recorder rejection.Recorder
}

// REST is the storage of a kind.
type REST struct {
	*rejection.Store
	shortNames []string
	category   Category
	// planned returns the object that a write would store.
	planned      func(ctx context.Context, gr schema.GroupResource, old, new runtime.Object) (runtime.Object, error)
	warnOnDelete func(ctx context.Context, name string) (string, error)
}

var (
	_ rest.StandardStorage      = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// Create is [rejection.Store.Create]. The response to a dry run includes the fields that the
// planner sets.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	out, err := r.Store.Create(ctx, obj, validate, options)
	if err != nil {
		return out, err
	}
	return r.created(ctx, out, options.DryRun)
}

// Update is [rejection.Store.Update]. The response to a dry run that creates includes the fields
// that the planner sets.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	out, created, err := r.Store.Update(ctx, name, info, create, update, allowCreate, options)
	if err != nil || !created {
		return out, created, err
	}
	out, err = r.created(ctx, out, options.DryRun)
	return out, err == nil, err
}

// created returns the response to a request that has created obj. A dry run is planned again,
// because admission discards the object of its plan.
func (r *REST) created(ctx context.Context, obj runtime.Object, dryRun []string) (runtime.Object, error) {
	if !dryrun.IsDryRun(dryRun) {
		return obj, nil
	}
	planned, err := r.planned(ctx, r.DefaultQualifiedResource, nil, obj)
	if err != nil {
		return nil, rejection.Check(ctx, r.Recorder, err, dryRun)
	}
	return planned, nil
}

// ShortNames returns the short names of the kind.
func (r *REST) ShortNames() []string { return r.shortNames }

// Categories returns the category that the kind is in.
func (r *REST) Categories() []string { return []string{string(r.category)} }

// Delete deletes an object, and warns of what that breaks.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	var text string
	if r.warnOnDelete != nil {
		var err error
		if text, err = r.warnOnDelete(ctx, name); err != nil {
			return nil, false, err
		}
	}
	out, gone, err := r.Store.Delete(ctx, name, validate, options)
	if err == nil && text != "" {
		warning.AddWarning(ctx, "", text)
	}
	return out, gone, err
}

// StatusREST is the storage of a kind's subresource status.
type StatusREST struct {
	store *rejection.Store
}

var (
	_ rest.Getter              = &StatusREST{}
	_ rest.Updater             = &StatusREST{}
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
)

// New returns an empty object of the kind.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the store is the kind's.
func (r *StatusREST) Destroy() {}

// Get returns the object.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the object's status.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields returns the fields that a write of the status does not change.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable makes the table of the kind.
func (r *StatusREST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

// New returns the storage of a kind, and of its status if it has one.
func New(kind Kind, options Options) (*REST, *StatusREST, error) {
	store := &genericregistry.Store{
		NewFunc:                   kind.New,
		NewListFunc:               kind.NewList,
		DefaultQualifiedResource:  kind.Resource,
		SingularQualifiedResource: schema.GroupResource{Group: kind.Resource.Group, Resource: kind.Singular},
		CreateStrategy:            limitErrors{kind.Strategy},
		UpdateStrategy:            limitUpdateErrors{kind.Strategy},
		DeleteStrategy:            kind.Strategy,
		ResetFieldsStrategy:       kind.Strategy,
		TableConvertor:            kind.Table,
	}
	storeOptions := &generic.StoreOptions{RESTOptions: options.Backend, AttrFunc: kind.Attrs}
	if kind.Index != nil {
		kind.Index.apply(store, storeOptions)
	}
	if err := store.CompleteWithOptions(storeOptions); err != nil {
		return nil, nil, err
	}
	recorded := func(store *genericregistry.Store) *rejection.Store {
		return &rejection.Store{Store: store, Recorder: options.Recorder, Filter: kind.Filter, Classify: kind.Classify}
	}
	main := &REST{Store: recorded(store), shortNames: kind.ShortNames, category: kind.Category, planned: options.Backend.Planned, warnOnDelete: kind.WarnOnDelete}
	if kind.Status == nil {
		return main, nil, nil
	}
	status := *store
	status.UpdateStrategy = limitUpdateErrors{kind.Status}
	status.ResetFieldsStrategy = kind.Status
	return main, &StatusREST{recorded(&status)}, nil
}

// limitErrors is a strategy with a bounded number of errors, because a response with all of them
// costs the square of their number.
type limitErrors struct{ rest.RESTCreateStrategy }

func (s limitErrors) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return metadata.Brief(s.RESTCreateStrategy.Validate(ctx, obj))
}

type limitUpdateErrors struct{ rest.RESTUpdateStrategy }

func (s limitUpdateErrors) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return metadata.Brief(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}
