// Package genericstrategy has the shared parts of the strategies of all kinds.
package genericstrategy

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

// Base has the behaviour of most kinds: names can be generated, PUT does not create, an update
// without a resource version is unconditional, and there are no warnings and no canonicalization.
type Base struct {
	runtime.ObjectTyper
	names.NameGenerator
}

// NewBase returns a Base that determines the kinds of objects with typer.
func NewBase(typer runtime.ObjectTyper) Base {
	return Base{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
}

// AllowCreateOnUpdate is false: PUT does not create.
func (Base) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is true: an update may omit the resource version.
func (Base) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize does nothing.
func (Base) Canonicalize(runtime.Object) {}

// WarningsOnCreate returns none.
func (Base) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate returns none.
func (Base) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string { return nil }

// GetResetFields returns none: a kind without a status lets all fields through.
func (Base) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return nil }

// KeepMetadata restores the metadata that a client can set from old, so that a write of the status
// does not change it.
func KeepMetadata(obj, old *metav1.ObjectMeta) {
	obj.Labels = old.Labels
	obj.Annotations = old.Annotations
	obj.Finalizers = old.Finalizers
	obj.OwnerReferences = old.OwnerReferences
}

// Restore drops metadata that only the server sets from a new object. An exported object has it:
// its resource version and the server's own finalizers.
func Restore(obj *metav1.ObjectMeta, own ...string) {
	obj.ResourceVersion = ""
	obj.Finalizers = slices.DeleteFunc(slices.Clone(obj.Finalizers), func(f string) bool { return slices.Contains(own, f) })
}

// KeepFinalizer keeps the server's own finalizer on an object that a client writes as a whole, from
// a manifest without the finalizer or with it too early. The same applies to a list of the client's
// own finalizers in a patch. A patch that leaves no finalizer explicitly removes the server's
// finalizer, and the planner refuses it.
func KeepFinalizer(ctx context.Context, obj, old *metav1.ObjectMeta, own string) {
	has, had := slices.Contains(obj.Finalizers, own), slices.Contains(old.Finalizers, own)
	switch {
	case has == had:
	case has:
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

// Attrs returns the function that returns the labels of an object of type T, and the fields that
// field selectors of it can use.
func Attrs[T metav1.Object](selectable func(T) fields.Set) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		t, ok := obj.(T)
		if !ok {
			return nil, nil, fmt.Errorf("a %T is not a %T", obj, *new(T))
		}
		return t.GetLabels(), selectable(t), nil
	}
}

// ResetStatus returns, for the tracking of field managers, the status: clients write it only
// through the subresource.
func ResetStatus(version string) map[fieldpath.APIVersion]*fieldpath.Set {
	return resetFields(version, []string{"status"})
}

func resetFields(version string, paths ...[]string) map[fieldpath.APIVersion]*fieldpath.Set {
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

// Cut returns the beginning of s, at most limit bytes, with non-printable characters escaped. It is
// for text written by one user and reported by another: refusing it would let the writer prevent
// the report.
func Cut(s string, limit int) string { return printable.Lines(s, limit) }

// Fit cuts the longest texts with Cut, so that their total length is at most limit bytes.
func Fit(limit int, texts ...*string) {
	slices.SortStableFunc(texts, func(a, b *string) int { return cmp.Compare(len(*a), len(*b)) })
	for i, text := range texts {
		*text = Cut(*text, limit/(len(texts)-i))
		limit -= len(*text)
	}
}

// CutEnd returns the end of s, in the same way as Cut returns the beginning.
func CutEnd(s string, limit int) string {
	if from := len(s) - limit; from > 0 {
		s = s[from:] // escaping never shortens it
	}
	s = printable.Lines(s, math.MaxInt)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[len(s)-limit:], "")
	}
	return s
}
