package auditrecord

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
)

// Resource is the resource of AuditRecords.
var Resource = rack.Resource("auditrecords")

// REST is the storage of AuditRecords. Records can be read, and rejections can be reported. It
// implements no update and no deletion.
type REST struct {
	store    *genericstore.REST
	strategy Strategy
	recorder rejection.Recorder
}

var (
	_ rest.Storage              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.Getter               = &REST{}
	_ rest.Lister               = &REST{}
	_ rest.Watcher              = &REST{}
	_ rest.Creater              = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewStorage returns the storage of AuditRecords. Created records are passed to the recorder. The
// filter hides records from users.
func NewStorage(options genericstore.Options, filter rejection.Filter) (*REST, error) {
	strategy := NewStrategy(options.Typer)
	store, _, err := genericstore.New(genericstore.Kind{
		Resource:   Resource,
		Singular:   "auditrecord",
		ShortNames: []string{"ar"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &rack.AuditRecord{} },
		NewList:    func() runtime.Object { return &rack.AuditRecordList{} },
		Strategy:   immutable{strategy},
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(options.Clock),
		Filter:     filter,
	}, options)
	return &REST{store: store, strategy: strategy, recorder: options.Recorder}, err
}

// immutable is the strategy of the underlying store. No request can reach its update.
type immutable struct{ Strategy }

func (immutable) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

func (immutable) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return field.ErrorList{field.Forbidden(nil, "records never change")}
}

func (immutable) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return nil }

// New returns an empty record.
func (r *REST) New() runtime.Object { return r.store.New() }

// NewList returns an empty list.
func (r *REST) NewList() runtime.Object { return r.store.NewList() }

// Destroy closes the store.
func (r *REST) Destroy() { r.store.Destroy() }

// NamespaceScoped is true: a record is in the namespace of the tenant.
func (r *REST) NamespaceScoped() bool { return true }

// ShortNames returns the short name of records.
func (r *REST) ShortNames() []string { return r.store.ShortNames() }

// Categories returns the category that records are in.
func (r *REST) Categories() []string { return r.store.Categories() }

// GetSingularName returns the name of one record.
func (r *REST) GetSingularName() string { return r.store.GetSingularName() }

// Get returns a record.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// List returns records, in pages if asked to.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.store.List(ctx, options)
}

// Watch returns the records that are added from now on, or from a revision.
func (r *REST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return r.store.Watch(ctx, options)
}

// ConvertToTable makes the table of records.
func (r *REST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

// Create records a rejection by an agent, the kernel or the scheduler.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	record := obj.(*rack.AuditRecord)
	if namespace := genericapirequest.NamespaceValue(ctx); record.Namespace == "" {
		record.Namespace = namespace
	} else if record.Namespace != namespace {
		return nil, apierrors.NewBadRequest("the namespace of the object does not match the namespace of the request")
	}
	r.strategy.PrepareForCreate(ctx, record)
	if errs := r.strategy.Validate(ctx, record); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("AuditRecord"), record.Name, metadata.Brief(errs))
	}
	if err := validate(ctx, record.DeepCopyObject()); err != nil {
		return nil, err
	}
	if dryrun.IsDryRun(options.DryRun) {
		return record, nil
	}
	return record, r.recorder.Reject(ctx, record)
}
