package genericstore

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NotFound returns the error that an object with a name cannot exist, with the cause.
func NotFound(resource schema.GroupResource, name string, cause error) error {
	err := apierrors.NewNotFound(resource, name)
	err.ErrStatus.Message += ": " + cause.Error()
	return err
}
