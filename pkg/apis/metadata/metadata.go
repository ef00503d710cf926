// Package metadata bounds what the metadata of an object costs to validate, before the checks of Kubernetes, whose cost grows with the
// square of the number of errors.
package metadata

import (
	"reflect"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check"
)

// Limits of an answer.
const (
	MaxErrors = 32
	maxValue  = 512 // bytes of a value that an error repeats
)

// Brief returns the first errors, and an error that has the number of all if they are more. Long values are cut.
func Brief(errs field.ErrorList) field.ErrorList {
	brief := slices.Clone(errs[:min(len(errs), MaxErrors)])
	for i, err := range brief {
		if v := reflect.ValueOf(err.BadValue); v.Kind() == reflect.String && v.Len() > maxValue {
			cut := *err
			cut.BadValue = strings.ToValidUTF8(v.String()[:maxValue], "?") + "..."
			brief[i] = &cut
		}
	}
	if len(errs) > MaxErrors {
		brief = append(brief, field.TooMany(field.NewPath("errors"), len(errs), MaxErrors))
	}
	return brief
}

// Oversized returns what is wrong with metadata that is too large, or wrong in more places or longer values than an answer has. All other metadata is
// for the checks of Kubernetes and of the kind.
func Oversized(obj, old metav1.ObjectMetaAccessor) field.ErrorList {
	meta, ok := obj.GetObjectMeta().(*metav1.ObjectMeta)
	was, wasOK := old.GetObjectMeta().(*metav1.ObjectMeta)
	if !ok || !wasOK {
		return nil
	}
	path := field.NewPath("metadata")
	if errs := append(check.NameLength(meta, path), check.Bounded(meta, was, path)...); len(errs) > 0 {
		return errs
	}
	anyName := func(string, bool) []string { return nil }
	errs := append(apivalidation.ValidateObjectMeta(meta, meta.Namespace != "", anyName, path), apivalidation.ValidateObjectMetaUpdate(meta, was, path)...)
	if brief := Brief(errs); !slices.Equal(brief, errs) {
		return brief
	}
	return nil
}
