package agent

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// enqueuePrefetch queues the images that the Mac's lease prefetches. An image of the same name on
// the disk does not count: it may be an earlier version.
func (a *Agent) enqueuePrefetch(macNode *rackv1alpha1.MacNode) {
	for _, name := range macNode.Status.PrefetchImages {
		a.queue.Add(key{prefetchKey, types.NamespacedName{Name: name}})
	}
}

// reconcilePrefetch pulls an image if the Mac's lease still wants it and the image is Ready.
func (a *Agent) reconcilePrefetch(ctx context.Context, name string) error {
	macNode, err := a.macNodes.Get(a.config.NodeName)
	if err != nil {
		return err
	}
	if !slices.Contains(macNode.Status.PrefetchImages, name) || macNode.Status.LeaseRef == nil || macNode.Status.ReleasingSince != nil {
		return nil
	}
	image, err := a.config.Macrack.ImageV1alpha1().MacOSImages().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wanted := source(image, macNode.Status.LeaseRef.Namespace)
	if holds(macNode, wanted) {
		return nil
	}
	if image.Status.Phase != imagev1alpha1.MacOSImageReady {
		return fmt.Errorf("image %s is not Ready yet", name)
	}
	if !a.prefetching.TryLock() { // one at a time: instances take precedence
		a.enqueueAfter(ctx, key{prefetchKey, types.NamespacedName{Name: name}}, progressInterval)
		return nil
	}
	defer a.prefetching.Unlock()
	if _, err := a.config.Images.Ensure(ctx, wanted, images.Needs{
		Credentials: a.credentials(image),
		MinimumFree: a.minimumFree.Load(),
		// Prefetched images of the lease must not evict each other.
		Keep:    func() ([]string, error) { return a.imagesInUse(macNode.Status.PrefetchImages...) },
		OnEvent: a.imageEvents(macNodeRef(macNode)),
	}); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	a.queue.Add(key{kind: macNodeKey}) // the MacNode lists the images
	return nil
}

func holds(macNode *rackv1alpha1.MacNode, image images.Image) bool {
	return slices.ContainsFunc(macNode.Status.Images, func(c rackv1alpha1.CachedImage) bool { return c.Name == image.Name && c.Digest == image.Digest })
}
