package rejection

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// clientError returns a client error for an error of the generic store that is an internal error,
// or that contains the key of the object in etcd. It returns other errors unchanged.
func clientError(gr schema.GroupResource, name string, err error) error {
	var number *strconv.NumError
	switch {
	case errors.Is(err, storage.ErrResourceVersionSetOnCreate):
		return apierrors.NewBadRequest("metadata.resourceVersion: must be left out when an object is created: the server sets it")
	case errors.As(err, &number):
		return apierrors.NewBadRequest(fmt.Sprintf("invalid metadata.resourceVersion %q; use the value of the object that you read, or omit it", number.Num))
	case apierrors.IsConflict(err):
		if _, precondition, ok := strings.Cut(err.Error(), "AdditionalErrorMsg: "); ok {
			return apierrors.NewConflict(gr, name, errors.New(precondition))
		}
	}
	return err
}
