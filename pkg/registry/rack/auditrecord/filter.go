package auditrecord

import (
	"context"
	"strconv"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"macrack.io/macrack/pkg/apis/rack"
)

// Visibility returns the predicate for the records that the user of a request may read; nil for
// all.
type Visibility func(ctx context.Context) (func(*rack.AuditRecord) bool, error)

// LimitTo limits users to the records that are visible to them.
func (r *REST) LimitTo(visibility Visibility) { r.visibility = visibility }

// visible returns the predicate for the records that the user of a request may read; nil for all.
func (r *REST) visible(ctx context.Context) (func(*rack.AuditRecord) bool, error) {
	if r.visibility == nil {
		return nil, nil
	}
	return r.visibility(ctx)
}

// selectors returns the selectors of options, which default to selecting everything.
func selectors(options *metainternalversion.ListOptions) (labels.Selector, fields.Selector) {
	label, field := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		label = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		field = options.FieldSelector
	}
	return label, field
}

// visibleField is a field that clients cannot use in selectors.
const visibleField = "visible"

// limit returns the predicate for visible records that match label and field.
func limit(label labels.Selector, field fields.Selector, visible func(*rack.AuditRecord) bool) storage.SelectionPredicate {
	predicate := storage.SelectionPredicate{Label: label, Field: fields.AndSelectors(field, fields.OneTermEqualSelector(visibleField, "true")), GetAttrs: GetAttrs}
	predicate.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := GetAttrs(obj)
		if err == nil {
			f[visibleField] = strconv.FormatBool(visible(obj.(*rack.AuditRecord)))
		}
		return l, f, err
	}
	return predicate
}
