package genericstrategy

import (
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// ServerFields are the fields of a status, a struct T, that only the server sets. A write of the
// status resets them and keeps their stored values.
type ServerFields[T any] struct {
	names   []string
	indexes [][]int
}

// NewServerFields returns the fields with the given names in the API. It panics if T has no such
// field.
func NewServerFields[T any](names ...string) ServerFields[T] {
	fields := ServerFields[T]{names: names}
	for _, name := range names {
		field, ok := reflect.TypeFor[T]().FieldByName(strings.ToUpper(name[:1]) + name[1:])
		if !ok {
			panic(fmt.Sprintf("%T has no field %s", *new(T), name))
		}
		fields.indexes = append(fields.indexes, field.Index)
	}
	return fields
}

// ResetFields returns the fields that a write of the status resets: all fields but the status, and
// these fields of the status.
func (f ServerFields[T]) ResetFields(version string) map[fieldpath.APIVersion]*fieldpath.Set {
	paths := [][]string{{"metadata"}, {"spec"}}
	for _, name := range f.names {
		paths = append(paths, []string{"status", name})
	}
	return resetFields(version, paths...)
}

// Keep sets the fields of a new status to those of the old one.
func (f ServerFields[T]) Keep(status, old *T) {
	to, from := reflect.ValueOf(status).Elem(), reflect.ValueOf(old).Elem()
	for _, index := range f.indexes {
		to.FieldByIndex(index).Set(from.FieldByIndex(index))
	}
}
