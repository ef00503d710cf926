package check

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/scalar"
)

// Unchanged checks that a value has not changed. Its errors name each changed field and the remedy.
// The same amount in another form, such as 8192Mi for 8Gi, is not a change.
func Unchanged(value, old any, instead string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, at := range changes(reflect.ValueOf(value), reflect.ValueOf(old), path) {
		errs = append(errs, field.Forbidden(at, apivalidation.FieldImmutableErrorMsg+"; "+instead))
	}
	return errs
}

// maxNamedKeys is the maximum size of a map whose changed keys are named one by one.
const maxNamedKeys = 64

// changes returns the paths of the fields in which two values of a type differ.
func changes(value, old reflect.Value, path *field.Path) []*field.Path {
	if sameValue.DeepEqual(value.Interface(), old.Interface()) {
		return nil
	}
	var paths []*field.Path
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() && !old.IsNil() {
			return changes(value.Elem(), old.Elem(), path)
		}
	case reflect.Struct:
		if _, ok := value.Interface().(scalar.Quantity); ok {
			break
		}
		if _, ok := value.Interface().(scalar.Duration); ok {
			break
		}
		for i := range value.NumField() {
			paths = append(paths, changes(value.Field(i), old.Field(i), path.Child(jsonName(value.Type().Field(i).Name)))...)
		}
		return paths
	case reflect.Map:
		if value.Len() > maxNamedKeys {
			break
		}
		for _, key := range keys(value, old) {
			at, k := path.Key(key), reflect.ValueOf(key).Convert(value.Type().Key())
			new, old := value.MapIndex(k), old.MapIndex(k)
			if !new.IsValid() || !old.IsValid() {
				paths = append(paths, at)
			} else {
				paths = append(paths, changes(new, old, at)...)
			}
		}
		return paths
	case reflect.Slice:
		if value.Len() != old.Len() {
			break
		}
		for i := range value.Len() {
			paths = append(paths, changes(value.Index(i), old.Index(i), path.Index(i))...)
		}
		return paths
	}
	return []*field.Path{path}
}

// keys returns the sorted keys of two maps with string keys.
func keys(a, b reflect.Value) []string {
	var keys []string
	for _, key := range append(a.MapKeys(), b.MapKeys()...) {
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// sameValue compares durations and amounts by value.
var sameValue = equality.Semantic.Copy()

func init() {
	err := sameValue.AddFuncs(
		func(a, b scalar.Quantity) bool {
			x, errX := a.Parse()
			y, errY := b.Parse()
			return a == b || errX == nil && errY == nil && x.Cmp(y) == 0
		},
		func(a, b scalar.Duration) bool {
			x, errX := a.Parse()
			y, errY := b.Parse()
			return a == b || errX == nil && errY == nil && x == y
		},
	)
	if err != nil {
		panic(err)
	}
}

// jsonName returns the JSON name of a field of an internal type: sshAuthorizedKeys for
// SSHAuthorizedKeys.
func jsonName(name string) string {
	rest := strings.TrimLeftFunc(name, unicode.IsUpper)
	upper := len(name) - len(rest)
	if rest != "" && upper > 1 {
		upper--
	}
	return strings.ToLower(name[:upper]) + name[upper:]
}
