package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// object is one of the versioned types.
type object interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// decode reads a stored object: "k8s", a zero byte, and an envelope with the object, all in
// protobuf.
func decode[T object](value []byte, into T) (T, error) {
	envelope, ok := bytes.CutPrefix(value, []byte("k8s\x00"))
	if !ok {
		return into, errors.New("not stored in protobuf")
	}
	unknown := runtime.Unknown{}
	if err := unknown.Unmarshal(envelope); err != nil {
		return into, err
	}
	return into, into.Unmarshal(unknown.Raw)
}

// Sum returns a sum of an object without its resource version, which is not stored.
func Sum(obj object) uint64 {
	version := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	data, err := obj.Marshal()
	obj.SetResourceVersion(version)
	if err != nil {
		return 0
	}
	sum := fnv.New64a()
	_, _ = sum.Write(data)
	return sum.Sum64()
}

// canonical returns a record in the form that is hashed according to the documentation of the
// ledger: the JSON of the API without some keys, with the others sorted, and without white space.
func canonical(record any, without ...string) ([]byte, error) {
	data, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	for _, key := range without {
		delete(fields, key)
	}
	return appendCanonical(nil, fields)
}

func appendCanonical(b []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case json.Number:
		if _, err := v.Int64(); err != nil {
			return nil, err
		}
		return append(b, v...), nil
	case string:
		return appendString(b, v), nil
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, item); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, key := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, key), ':')
			if b, err = appendCanonical(b, v[key]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("%T has no canonical form", value)
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, c := range []byte(s) {
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
