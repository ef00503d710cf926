package macosimage

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/txn"
)

// Resource is the resource of MacOSImages.
var Resource = image.Resource("macosimages")

// IndexUse is the kind of index key that says that an instance, which has not ended, uses an image.
const IndexUse = "image-use"

// UseID returns the ID of the index key for the use of an image by the instance with the given UID.
func UseID(imageName string, instance types.UID) string {
	return usePrefix(imageName) + string(instance)
}

func usePrefix(imageName string) string { return imageName + "/" }

// Plan refuses to delete an image that an instance uses.
func Plan(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
	was, _ := old.(*image.MacOSImage)
	is, _ := new.(*image.MacOSImage)
	if was == nil || was.DeletionTimestamp != nil || is != nil && is.DeletionTimestamp == nil {
		return nil
	}
	user, used, err := tx.AnyKey(ctx, IndexUse, usePrefix(was.Name))
	if err != nil {
		return err
	}
	if used {
		return apierrors.NewConflict(Resource, was.Name, fmt.Errorf("instance %s uses it; it can be deleted when no instance that has not ended does", user))
	}
	return nil
}
