package imagestatus

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// Prefetcher pulls the images that no instance waits for.
type Prefetcher struct {
	cache  *Cache
	client versioned.Interface
	// prefetching is locked during a pull.
	prefetching sync.Mutex

	mu sync.Mutex
	// missing has the lease for which the absence of an image was last reported, by name.
	missing map[string]types.UID
}

// NewPrefetcher returns a Prefetcher.
func NewPrefetcher(cache *Cache, client versioned.Interface) *Prefetcher {
	return &Prefetcher{cache: cache, client: client, missing: map[string]types.UID{}}
}

// Enqueue queues the images that the Mac's lease prefetches. An image of the same name on
// the disk does not count: it may be an earlier version.
func (p *Prefetcher) Enqueue(macNode *rackv1alpha1.MacNode) {
	for _, name := range macNode.Status.PrefetchImages {
		p.cache.Queue.Add(queue.Prefetch(name))
	}
}

// Reconcile pulls an image if the Mac's lease still wants it and the image is Ready.
func (p *Prefetcher) Reconcile(ctx context.Context, name string) error {
	macNode, err := p.cache.MacNode.Cached()
	if err != nil {
		return err
	}
	if !slices.Contains(macNode.Status.PrefetchImages, name) || macNode.Status.LeaseRef == nil || macNode.Status.ReleasingSince != nil {
		return nil
	}
	image, err := p.client.ImageV1alpha1().MacOSImages().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		p.reportMissing(macNode.Status.LeaseRef, name)
		return nil
	}
	if err != nil {
		return err
	}
	tenant := macNode.Status.LeaseRef.Namespace
	if holds(macNode, describe(image, tenant)) {
		return nil
	}
	if image.Status.Phase != imagev1alpha1.MacOSImageReady {
		return fmt.Errorf("image %s is not Ready yet", name)
	}
	if !p.prefetching.TryLock() { // one at a time: instances take precedence
		p.cache.Queue.AddAfterClock(ctx, queue.Prefetch(name), ProgressInterval)
		return nil
	}
	defer p.prefetching.Unlock()
	// Prefetched images of the lease must not evict each other.
	if _, err := p.cache.ensure(ctx, image, tenant, objects.MacNodeRef(macNode), macNode.Status.PrefetchImages...); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

// reportMissing reports an image that does not exist, once for each lease. The Event is on the
// lease, which names the image.
func (p *Prefetcher) reportMissing(lease *rackv1alpha1.LeaseReference, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missing[name] == lease.UID {
		return
	}
	p.missing[name] = lease.UID
	p.cache.event(&corev1.ObjectReference{
		APIVersion: rackv1alpha1.SchemeGroupVersion.String(), Kind: "MacNodeLease", Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID,
	}, corev1.EventTypeWarning, reasonNotFound, fmt.Sprintf("MacOSImage %s of spec.prefetchImages does not exist; see kubectl get macosimages", name))
}

func holds(macNode *rackv1alpha1.MacNode, image images.Image) bool {
	return slices.ContainsFunc(macNode.Status.Images, func(c rackv1alpha1.CachedImage) bool { return c.Name == image.Name && c.Digest == image.Digest })
}
