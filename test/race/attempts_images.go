package race

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"

	"macrack.io/macrack/test/race/check"
)

func deleteImage(w *worker, ctx context.Context, _ view) {
	name := pick(w.images)
	_, err := remove[*imagev1alpha1.MacOSImage](asAdmin(ctx), w.client().ImageV1alpha1().RESTClient(), "macosimages", "", name, check.ImageKey(name), w)
	if o := w.tried("image/delete", err); o == success || o == unknown {
		w.restoreImage(ctx, name)
	}
}

// restoreImage creates a deleted image again.
func (w *worker) restoreImage(ctx context.Context, name string) {
	images := w.client().ImageV1alpha1().MacOSImages()
	image, err := images.Create(asAdmin(ctx), newImage(name), metav1.CreateOptions{})
	if w.tried("image/create", err) != success {
		if image, err = images.Get(asAdmin(ctx), name, metav1.GetOptions{}); err != nil || image.Status.Phase == imagev1alpha1.MacOSImageReady {
			return
		}
	} else {
		w.wrote(image)
	}
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	image, err = images.UpdateStatus(asControllers(ctx), image, metav1.UpdateOptions{})
	if w.tried("image/ready", err) == success {
		w.wrote(image)
	}
}
