package compliancereport

import (
	"context"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// Resource is the resource of ComplianceReports.
var Resource = rack.Resource("compliancereports")

// A Reporter reports on the records of the ledger.
type Reporter interface {
	Report(ctx context.Context, windows ...ledger.Window) ([]rack.ComplianceReportStatus, error)
}

// REST computes ComplianceReports when they are read. Nothing is stored.
type REST struct {
	rest.TableConvertor
	clock    clock.PassiveClock
	reporter Reporter
	turn     chan struct{} // holds a token while no report is computed
}

var (
	_ rest.Storage              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.Getter               = &REST{}
	_ rest.Lister               = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewREST returns the storage that computes reports.
func NewREST(clock clock.PassiveClock, reporter Reporter) *REST {
	r := &REST{
		TableConvertor: NewTableConvertor(clock),
		clock:          clock,
		reporter:       reporter,
		turn:           make(chan struct{}, 1),
	}
	r.turn <- struct{}{}
	return r
}

// New returns an empty report.
func (r *REST) New() runtime.Object { return &rack.ComplianceReport{} }

// NewList returns an empty list.
func (r *REST) NewList() runtime.Object { return &rack.ComplianceReportList{} }

// Destroy does nothing: there is nothing to close.
func (r *REST) Destroy() {}

// NamespaceScoped is false: a report is about all Macs.
func (r *REST) NamespaceScoped() bool { return false }

// GetSingularName returns the name of one report.
func (r *REST) GetSingularName() string { return "compliancereport" }

// Categories returns the category that reports are in.
func (r *REST) Categories() []string { return []string{string(genericstore.Operators)} }

// Get computes the report on the window given by the name. A name that is not a window is not
// found.
func (r *REST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	window, err := ledger.ParseWindow(name, r.clock.Now())
	if err != nil {
		return nil, genericstore.NotFound(Resource, name, err)
	}
	reports, err := r.compute(ctx, window)
	if err != nil {
		return nil, err
	}
	return &reports[0], nil
}

// List computes the reports on the usual windows, or on the one selected by name.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	label, field := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		label = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		field = options.FieldSelector
	}
	names := ledger.UsualWindows
	if name, ok := field.RequiresExactMatch("metadata.name"); ok {
		names = []string{name}
	}

	now := r.clock.Now()
	var windows []ledger.Window
	for _, name := range names {
		if !label.Matches(labels.Set{}) || !field.Matches(fields.Set{"metadata.name": name}) {
			continue
		}
		if window, err := ledger.ParseWindow(name, now); err == nil {
			windows = append(windows, window)
		}
	}
	reports, err := r.compute(ctx, windows...)
	if err != nil {
		return nil, err
	}
	return &rack.ComplianceReportList{Items: reports}, nil
}

// compute computes the reports on all windows at once. Requests take turns, because a report may
// read all records.
func (r *REST) compute(ctx context.Context, windows ...ledger.Window) ([]rack.ComplianceReport, error) {
	reports := make([]rack.ComplianceReport, 0, len(windows))
	if len(windows) == 0 {
		return reports, nil
	}
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	statuses, err := r.reporter.Report(ctx, windows...)
	if err != nil {
		return nil, err
	}
	for i, status := range statuses {
		observe(windows[i].Name, status, r.clock.Now())
		reports = append(reports, rack.ComplianceReport{
			ObjectMeta: metav1.ObjectMeta{Name: windows[i].Name, CreationTimestamp: metav1.NewTime(r.clock.Now())},
			Status:     status,
		})
	}
	return reports, nil
}
