// Package values keeps values out of storage that some readers cannot represent. Every client can
// read all stored objects in JSON, YAML, CBOR and protobuf.
package values

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// maxErrors is the maximum number of errors that Check returns.
const maxErrors = 10

// The range of times in RFC 3339.
var (
	firstTime = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// Check returns the values in obj that some readers cannot represent: times outside the years 0 to
// 9999, text that is not valid UTF-8 or has a NUL, and managed fields that are not FieldsV1.
func Check(obj runtime.Object) field.ErrorList {
	w := &walker{}
	w.walk(reflect.ValueOf(obj).Elem(), step{})
	return w.errs
}

// Repair replaces the values in obj that Check refuses with the nearest values that every reader
// can represent. It is for objects that were stored without the check.
func Repair(obj runtime.Object) {
	w := &walker{repair: true}
	w.walk(reflect.ValueOf(obj).Elem(), step{})
}

// A walker visits all values of an object.
type walker struct {
	repair bool
	path   []step
	errs   field.ErrorList
}

// A step of the path to a value is a field, or an index or a key if the name is empty.
type step struct {
	name  string
	index int
	key   string
}

func (w *walker) walk(v reflect.Value, at step) {
	if len(w.errs) >= maxErrors {
		return
	}
	w.path = append(w.path, at)
	defer func() { w.path = w.path[:len(w.path)-1] }()
	switch v.Type() {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		w.time(v.Field(0).Addr().Interface().(*time.Time))
		return
	case reflect.TypeFor[metav1.FieldsV1]():
		w.fields(v.Addr().Interface().(*metav1.FieldsV1))
		return
	}
	switch v.Kind() {
	case reflect.String:
		w.text(v)
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			w.walk(v.Elem(), step{})
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			w.walk(v.Field(f.index), f)
		}
	case reflect.Slice, reflect.Array:
		if !carries(v.Type().Elem()) {
			return // such as bytes, which are base64 in JSON
		}
		for i := range v.Len() {
			w.walk(v.Index(i), step{index: i + 1})
		}
	case reflect.Map:
		w.entries(v)
	}
}

// entries visits a map, whose keys and values are copies.
func (w *walker) entries(m reflect.Value) {
	iter := m.MapRange()
	for iter.Next() {
		key, value := reflect.New(m.Type().Key()).Elem(), reflect.New(m.Type().Elem()).Elem()
		key.Set(iter.Key())
		value.Set(iter.Value())
		at := step{key: key.String()}
		w.walk(key, at)
		w.walk(value, at)
		if w.repair {
			if key.String() != at.key {
				value = reflect.Value{} // removed, because a repaired key may be invalid
			}
			m.SetMapIndex(iter.Key(), value)
		}
	}
}

func (w *walker) time(t *time.Time) {
	var nearest time.Time
	switch seconds := t.Unix(); { // not the year, which overflows for distant times
	case seconds < firstTime.Unix():
		nearest = firstTime
	case seconds > lastTime.Unix():
		nearest = lastTime
	default:
		return
	}
	w.refuse("must be a time in the years 0 to 9999")
	if w.repair {
		*t = nearest
	}
}

func (w *walker) text(v reflect.Value) {
	s := v.String()
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return
	}
	w.refuse("must be valid UTF-8 without NUL")
	if w.repair {
		replacement := string(unicode.ReplacementChar)
		v.SetString(strings.ReplaceAll(strings.ToValidUTF8(s, replacement), "\x00", replacement))
	}
}

func (w *walker) fields(fields *metav1.FieldsV1) {
	raw := fields.GetRawBytes()
	if len(raw) == 0 || json.Valid(raw) && utf8.Valid(raw) && fieldpath.NewSet().FromJSON(bytes.NewReader(raw)) == nil {
		return
	}
	w.refuse("must be the JSON of a set of fields")
	if w.repair {
		fields.SetRawString("{}")
	}
}

// refuse adds an error, which does not repeat the value.
func (w *walker) refuse(detail string) {
	if w.repair {
		return
	}
	var path *field.Path
	for _, s := range w.path {
		switch {
		case s.name != "" && path == nil:
			path = field.NewPath(s.name)
		case s.name != "":
			path = path.Child(s.name)
		case s.index > 0:
			path = path.Index(s.index - 1)
		case s.key != "":
			path = path.Key(strings.ToValidUTF8(s.key, "?"))
		}
	}
	w.errs = append(w.errs, field.Invalid(path, "(not shown)", detail))
}

var structs sync.Map // fields that can contain checked values, by type

func fieldsOf(t reflect.Type) []step {
	if known, ok := structs.Load(t); ok {
		return known.([]step)
	}
	var fields []step
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Type != reflect.TypeFor[metav1.TypeMeta]() && carries(f.Type) {
			fields = append(fields, step{name: name(f), index: i})
		}
	}
	structs.Store(t, fields)
	return fields
}

// carries reports whether a value of type t may be, or contain, a checked value.
func carries(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return carries(t.Elem())
	}
	return t.Kind() == reflect.String || t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Interface
}

// name returns the JSON name of a field. Internal types have no tags: their names begin in lower
// case.
func name(f reflect.StructField) string {
	if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
		return tag
	}
	if f.Type == reflect.TypeFor[metav1.ObjectMeta]() {
		return "metadata"
	}
	upper := strings.IndexFunc(f.Name, func(r rune) bool { return !unicode.IsUpper(r) })
	switch {
	case upper < 0:
		upper = len(f.Name)
	case upper > 1:
		upper-- // the last capital begins the next word
	}
	return strings.ToLower(f.Name[:upper]) + f.Name[upper:]
}
