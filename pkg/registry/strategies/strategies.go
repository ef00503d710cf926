// Package strategies has what the strategies of all kinds have in common.
package strategies

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/printable"
)

// Base has the behaviour of most kinds: names can be generated, PUT does not create, an update without a
// resource version is unconditional, and there is nothing to warn of and nothing to canonicalize.
type Base struct {
	runtime.ObjectTyper
	names.NameGenerator
}

// NewBase returns a Base that finds the kinds of objects with typer.
func NewBase(typer runtime.ObjectTyper) Base {
	return Base{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
}

// AllowCreateOnUpdate is false: PUT does not create.
func (Base) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is true: an update may come without a resource version.
func (Base) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize does nothing.
func (Base) Canonicalize(runtime.Object) {}

// WarningsOnCreate returns none.
func (Base) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate returns none.
func (Base) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string { return nil }

// GetResetFields returns none: a kind without a status lets all fields through.
func (Base) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return nil }

// KeepMetadata makes a write of status leave the metadata alone: what a client may set there is as in old.
func KeepMetadata(obj, old *metav1.ObjectMeta) {
	obj.Labels = old.Labels
	obj.Annotations = old.Annotations
	obj.Finalizers = old.Finalizers
	obj.OwnerReferences = old.OwnerReferences
}

// Restore drops from the metadata of a new object what only the server sets, and what an object that was exported has: its version, and the
// server's own finalizers.
func Restore(obj *metav1.ObjectMeta, own ...string) {
	obj.ResourceVersion = ""
	obj.Finalizers = slices.DeleteFunc(slices.Clone(obj.Finalizers), func(f string) bool { return slices.Contains(own, f) })
}

// KeepFinalizer keeps the server's own finalizer on an object that a client writes whole, from a manifest that does not have the finalizer or has it too
// early. The same goes for a list of the client's own finalizers in a patch. A patch that leaves no finalizer can mean nothing but the removal of the
// server's, and is for the planner to refuse.
func KeepFinalizer(ctx context.Context, obj, old *metav1.ObjectMeta, own string) {
	is, was := slices.Contains(obj.Finalizers, own), slices.Contains(old.Finalizers, own)
	switch {
	case is == was:
	case is:
		obj.Finalizers = slices.DeleteFunc(slices.Clone(obj.Finalizers), func(f string) bool { return f == own })
	case len(obj.Finalizers) == 0 && isPatch(ctx):
	default:
		obj.Finalizers = append(slices.Clone(obj.Finalizers), own)
	}
}

func isPatch(ctx context.Context) bool {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && info.Verb == "patch"
}

// Attrs returns the function that returns the labels of an object of type T, and the fields by which it can be selected.
func Attrs[T metav1.Object](selectable func(T) fields.Set) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		t, ok := obj.(T)
		if !ok {
			return nil, nil, fmt.Errorf("a %T is not a %T", obj, *new(T))
		}
		return t.GetLabels(), selectable(t), nil
	}
}

// ResetFields says, for the tracking of field managers, which fields a strategy does not let through.
func ResetFields(version string, paths ...[]string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, path := range paths {
		parts := make([]any, len(path))
		for i := range path {
			parts[i] = path[i]
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(version): set}
}

// Path names a field by the names on the way to it.
func Path(names ...string) []string { return names }

// Cut returns the beginning of s, limit bytes at most, with characters that do not print escaped. It is for text that
// one user reports and another wrote: to refuse it would let the writer keep the reporter from reporting.
func Cut(s string, limit int) string { return printable.Lines(s, limit) }

// Fit cuts the longest of texts, as Cut does, so that all of them have limit bytes at most together.
func Fit(limit int, texts ...*string) {
	slices.SortStableFunc(texts, func(a, b *string) int { return cmp.Compare(len(*a), len(*b)) })
	for i, text := range texts {
		*text = Cut(*text, limit/(len(texts)-i))
		limit -= len(*text)
	}
}

// CutEnd returns the end of s as Cut returns the beginning.
func CutEnd(s string, limit int) string {
	if from := len(s) - limit; from > 0 {
		s = s[from:] // escaping makes it no shorter
	}
	s = printable.Lines(s, math.MaxInt)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[len(s)-limit:], "")
	}
	return s
}
