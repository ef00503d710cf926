package shared

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// IgnoreNotFound returns err, or nil if err means that the object does not exist.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
