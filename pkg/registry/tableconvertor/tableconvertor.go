// Package tableconvertor creates the server-side tables that kubectl get prints.
package tableconvertor

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/scalar"
)

// None is the text of a cell without a value, as in kubectl.
const None = "<none>"

// Unknown is the text of a cell whose value is missing, as in kubectl.
const Unknown = "<unknown>"

// Name returns the column of an object's name.
func Name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
}

// AgeColumn returns the column of an object's age.
func AgeColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}
}

// Column returns a text column that is always shown.
func Column(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// Number returns an integer column that is always shown.
func Number(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}
}

// Wide returns the column, shown only with -o wide.
func Wide(column metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	column.Priority = 1
	return column
}

type convertor[T runtime.Object] struct {
	columns []metav1.TableColumnDefinition
	cells   func(T) []any
}

// New returns a convertor for objects and lists of T. The function cells returns one cell for each
// of the columns.
func New[T runtime.Object](columns []metav1.TableColumnDefinition, cells func(T) []any) rest.TableConvertor {
	return convertor[T]{columns: columns, cells: cells}
}

// ConvertToTable implements rest.TableConvertor. An object of another type than T is not acceptable
// (406).
func (c convertor[T]) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	addRow := func(obj runtime.Object) error {
		t, ok := obj.(T)
		if !ok {
			return notAcceptable(obj)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: c.cells(t), Object: runtime.RawExtension{Object: included(obj, options)}})
		return nil
	}
	if meta.IsListType(object) {
		if err := meta.EachListItem(object, addRow); err != nil {
			return nil, err
		}
	} else if err := addRow(object); err != nil {
		return nil, err
	}

	if m, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
		table.Continue = m.GetContinue()
		table.RemainingItemCount = m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = c.columns
	}
	return table, nil
}

// included returns the part of an object that its row includes. Metadata is included without
// managed fields: they are larger than the rest of a row, and no table shows them.
func included(obj, options runtime.Object) runtime.Object {
	o, ok := options.(*metav1.TableOptions)
	if !ok || o.IncludeObject != metav1.IncludeMetadata && o.IncludeObject != "" {
		return obj
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return obj
	}
	partial := meta.AsPartialObjectMetadata(m)
	partial.ManagedFields = nil
	return partial
}

func notAcceptable(obj runtime.Object) error {
	return &errors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: fmt.Sprintf("objects of type %T cannot be shown as a table", obj),
	}}
}

// Text returns s, or <none>.
func Text(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Time returns t in RFC 3339 and UTC, or <none>.
func Time(t *metav1.Time) string {
	if t.IsZero() {
		return None
	}
	return t.UTC().Format(time.RFC3339)
}

// Age returns the time since t, such as 5d, or <unknown>.
func Age(clock clock.PassiveClock, t metav1.Time) string {
	if t.IsZero() {
		return Unknown
	}
	return duration.HumanDuration(clock.Since(t.Time))
}

// Remaining returns the time until t, such as 19h; 0s after t, and - for nil.
func Remaining(clock clock.PassiveClock, t *metav1.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, t.Sub(clock.Now())))
}

// Quantity returns the amount as it was written, or <none> if it is zero.
func Quantity(q scalar.Quantity) string {
	if value := q.Value(); value.IsZero() {
		return None
	}
	return q.Text
}

// Duration returns the duration as it was written, or <none>.
func Duration(d *scalar.Duration) string {
	if d == nil {
		return None
	}
	return d.Text
}

// Bytes returns a measured number of bytes in Gi or Mi, or <none> if it is zero or less.
func Bytes(n int64) string {
	const mi, gi = 1 << 20, 1 << 30
	switch {
	case n <= 0:
		return None
	case n >= 10*gi || n >= gi && n%gi == 0:
		return fmt.Sprintf("%dGi", n/gi)
	case n >= gi:
		return fmt.Sprintf("%.1fGi", float64(n)/gi)
	case n >= mi:
		return fmt.Sprintf("%dMi", n/mi)
	default:
		return fmt.Sprintf("%d", n)
	}
}
