package values

import (
	"io"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NewCodec returns the storage codec of a resource. For all writers, it refuses values that a
// reader cannot represent and limits the managed fields. It repairs objects when it decodes them.
func NewCodec(gr schema.GroupResource, codec runtime.Codec) runtime.Codec {
	return storageCodec{codec, gr}
}

type storageCodec struct {
	runtime.Codec
	resource schema.GroupResource
}

// Encode writes an object, or returns an error with status 422 that names the values that cannot be
// stored.
func (c storageCodec) Encode(obj runtime.Object, w io.Writer) error {
	obj = withBoundedManagedFields(obj) // before the check, which parses the remaining fields
	if errs := Check(obj); len(errs) > 0 {
		var objName string
		if m, err := meta.Accessor(obj); err == nil {
			objName = m.GetName()
		}
		kind := schema.GroupKind{Group: c.resource.Group, Kind: reflect.TypeOf(obj).Elem().Name()}
		return apierrors.NewInvalid(kind, objName, errs)
	}
	return c.Codec.Encode(obj, w)
}

// Decode reads an object, and repairs it.
func (c storageCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := c.Codec.Decode(data, defaults, into)
	if err == nil {
		Repair(obj)
	}
	return obj, gvk, err
}
