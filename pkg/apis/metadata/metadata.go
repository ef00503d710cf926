// Package metadata limits the cost of validating metadata. It runs before the checks of Kubernetes,
// whose cost grows with the square of the number of errors.
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

// Limits of a response.
const (
	MaxErrors = 32
	maxValue  = 512 // bytes of a value that an error repeats
)

// Brief returns the first errors and, if there are more, an error with the total number. Long
// values are cut.
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

// Oversized returns the errors in metadata that is too large, or whose errors exceed the limits of
// a response. The checks of Kubernetes and of the kind handle all other metadata.
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
