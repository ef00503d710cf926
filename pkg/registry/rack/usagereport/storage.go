package usagereport

import (
	"context"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/ledger/usage"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rejection"
)

// Resource is the resource of UsageReports.
var Resource = rack.Resource("usagereports")

// REST computes UsageReports when they are read. Nothing is stored.
type REST struct {
	rest.TableConvertor
	clock clock.PassiveClock
	books *books
	// filter selects the first records of the leases that a user may see.
	filter rejection.Filter
}

var (
	_ rest.Storage              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.Getter               = &REST{}
	_ rest.Lister               = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewREST returns the storage that computes reports on the leases of a source. The filter hides
// leases from users.
func NewREST(clock clock.PassiveClock, source Source, filter rejection.Filter) *REST {
	return &REST{TableConvertor: NewTableConvertor(clock), clock: clock, books: newBooks(clock, source), filter: filter}
}

// New returns an empty report.
func (r *REST) New() runtime.Object { return &rack.UsageReport{} }

// NewList returns an empty list.
func (r *REST) NewList() runtime.Object { return &rack.UsageReportList{} }

// Destroy does nothing: there is nothing to close.
func (r *REST) Destroy() {}

// NamespaceScoped is true: a report is about the leases of a namespace.
func (r *REST) NamespaceScoped() bool { return true }

// GetSingularName returns the name of one report.
func (r *REST) GetSingularName() string { return "usagereport" }

// Categories returns the category that reports are in.
func (r *REST) Categories() []string { return []string{string(genericstore.Tenants)} }

// Get computes the report of a namespace on the window given by the name. A name that is not a
// window is not found.
func (r *REST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if _, err := ledger.ParseWindow(name, r.clock.Now()); err != nil {
		return nil, genericstore.NotFound(Resource, name, err)
	}
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	window, err := view.book.Window(name)
	if err != nil {
		return nil, genericstore.NotFound(Resource, name, err)
	}
	report := view.report(genericapirequest.NamespaceValue(ctx), window)
	warnUnproven(ctx, report)
	return &report, nil
}

// List computes the reports on the usual windows, or on the one selected by name. A list of all
// namespaces has only those with leases in the window.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	options = withDefaults(options)
	view, err := r.view(ctx)
	if err != nil {
		return nil, err
	}
	list := &rack.UsageReportList{Items: []rack.UsageReport{}}
	names := usage.UsualWindows
	if name, ok := options.FieldSelector.RequiresExactMatch("metadata.name"); ok {
		names = []string{name}
	}
	page, err := pageOf(options)
	if err != nil {
		return nil, err
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	tenants := []string{namespace}
	if namespace == "" {
		tenants = view.book.Tenants()
	}
	for _, tenant := range tenants {
		for i, name := range names {
			set := fields.Set{"metadata.name": name, "metadata.namespace": tenant}
			window, err := view.book.Window(name)
			if err != nil || !page.follows(tenant, i) || !options.LabelSelector.Matches(labels.Set{}) || !options.FieldSelector.Matches(set) {
				continue
			}
			report := view.report(tenant, window)
			if namespace == "" && report.Status.Total.Leases == 0 {
				continue
			}
			if page.isFull(list) {
				list.Continue = page.next()
				return list, nil
			}
			page.add(list, report, tenant, i)
			warnUnproven(ctx, report)
		}
	}
	return list, nil
}

func withDefaults(options *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	set := metainternalversion.ListOptions{}
	if options != nil {
		set = *options
	}
	if set.LabelSelector == nil {
		set.LabelSelector = labels.Everything()
	}
	if set.FieldSelector == nil {
		set.FieldSelector = fields.Everything()
	}
	return &set
}

// A view is the part of a book that a user may see.
type view struct {
	book     *usage.Book
	selector fields.Selector
}

func (r *REST) view(ctx context.Context) (*view, error) {
	selector, err := r.filter(ctx)
	if err != nil {
		return nil, err
	}
	book, err := r.books.get(ctx)
	return &view{book, selector}, err
}

func (v *view) report(tenant string, window ledger.Window) rack.UsageReport {
	return v.book.Report(tenant, window, func(l ledger.Lease) bool { return auditrecord.IsSelected(v.selector, l.Created) })
}
