package macosimage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/txn"
)

// Resource is the resource of MacOSImages.
var Resource = image.Resource("macosimages")

// IndexUse is the kind of the index keys for the use of an image by an instance that has not ended.
const IndexUse = "image-use"

// UseID returns the ID of the index key for the use of an image by the instance with the given UID.
func UseID(imageName string, instance types.UID) string {
	return usePrefix(imageName) + string(instance)
}

func usePrefix(imageName string) string { return imageName + "/" }

// Usable reports whether an instance in a namespace may use an image. The image must be Ready,
// unless its pull Secret belongs to the tenant: then only the Mac that runs the instance can verify
// it. Such an image is also pulled by its digest.
func Usable(i *image.MacOSImage, namespace string) bool {
	if i.DeletionTimestamp != nil {
		return false
	}
	if i.Status.Phase == image.MacOSImageReady {
		return true
	}
	ready := meta.FindStatusCondition(i.Status.Conditions, image.MacOSImageReadyCondition)
	return i.Status.Phase == image.MacOSImagePending && ready != nil && ready.ObservedGeneration == i.Generation &&
		ready.Reason == image.ReasonPullSecretUnreadable && i.Spec.PullSecretRef != nil && i.Spec.PullSecretRef.Namespace == namespace
}

// InUse reports whether an instance that has not ended uses an image.
func InUse(ctx context.Context, tx *txn.Tx, imageName string) (bool, error) {
	_, used, err := tx.AnyKey(ctx, IndexUse, usePrefix(imageName))
	return used, err
}

// NewPlanner returns the planner of MacOSImages: an image in use by an instance cannot be deleted,
// and its spec cannot change.
func NewPlanner(clock clock.PassiveClock) txn.Planner {
	return func(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
		old, _ := oldObj.(*image.MacOSImage)
		new, _ := newObj.(*image.MacOSImage)
		if err := checkUse(ctx, tx, old, new); err != nil {
			return err
		}
		if new != nil {
			deriveConditions(new, clock.Now())
		}
		return nil
	}
}

func checkUse(ctx context.Context, tx *txn.Tx, old, new *image.MacOSImage) error {
	changed := old != nil && new != nil && !equality.Semantic.DeepEqual(old.Spec, new.Spec)
	if !changed && (old == nil || old.DeletionTimestamp != nil || new != nil && new.DeletionTimestamp == nil) {
		return nil
	}
	user, used, err := tx.AnyKey(ctx, IndexUse, usePrefix(old.Name))
	if err != nil {
		return err
	}
	if used {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("instance %s uses it; it can be deleted or changed only when no running or pending instance uses it", user))
	}
	return nil
}
