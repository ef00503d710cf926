// Package imagestatus pulls, prefetches and verifies images, and reports their state. It verifies
// the images that only a Mac can reach.
package imagestatus

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Cache provides the images on the Mac.
type Cache struct {
	Kube      kubernetes.Interface
	Store     images.Store
	Instances *objects.Instances
	MacNode   *objects.MacNode
	Queue     *queue.Queue[queue.Key]
	Recorder  record.EventRecorder
	// MinimumFree is the number of bytes that images must leave free on the disk.
	MinimumFree *atomic.Int64
	// Reserved returns the number of bytes that the caches of the Mac's lease may still take.
	Reserved func(macNode *rackv1alpha1.MacNode) int64
}

// Compare queues the MacNode if the images on the disk changed, for example because an operator
// removed one.
func (c *Cache) Compare() {
	cached, err := c.Store.List()
	if err != nil {
		klog.ErrorS(err, "Failed to list the images on the disk")
		return
	}
	macNode, err := c.MacNode.Cached()
	if err == nil && !slices.EqualFunc(cached, macNode.Status.Images, func(c images.Cached, r rackv1alpha1.CachedImage) bool {
		return c.Name == r.Name && c.Digest == r.Digest
	}) {
		c.Queue.Add(queue.MacNode())
	}
}

// ensure makes an image available for a tenant. Its events are on an object. The images in use are
// not evicted for it, nor are those of keep.
func (c *Cache) ensure(ctx context.Context, image *imagev1alpha1.MacOSImage, tenant string, on *corev1.ObjectReference, keep ...string) (images.Cached, error) {
	cached, err := c.Store.Ensure(ctx, describe(image, tenant), images.Needs{
		Credentials: c.credentials(image),
		MinimumFree: c.MinimumFree.Load(),
		Caches:      c.reserved(),
		Keep: func() ([]string, error) {
			inUse, err := c.Instances.Images()
			if err != nil {
				return nil, err
			}
			return append(slices.Clone(keep), inUse...), nil
		},
		OnEvent: c.onEvent(on),
	})
	if err == nil {
		c.Queue.Add(queue.MacNode()) // the MacNode lists the images
	}
	return cached, err
}

// reserved returns the number of bytes that the caches of the Mac's lease may still take.
func (c *Cache) reserved() int64 {
	macNode, err := c.MacNode.Cached()
	if err != nil {
		return 0 // the Mac does not exist any more
	}
	return c.Reserved(macNode)
}

// has reports whether the image is on the disk.
func (c *Cache) has(image *imagev1alpha1.MacOSImage) bool {
	cached, err := c.Store.List()
	return err == nil && slices.ContainsFunc(cached, func(c images.Cached) bool { return c.Name == image.Name && c.Digest == image.Spec.Source.Digest })
}

// describe describes an image to the store, for a tenant.
func describe(image *imagev1alpha1.MacOSImage, tenant string) images.Image {
	digest := image.Status.Digest
	if digest == "" {
		digest = image.Spec.Source.Digest
	}
	return images.Image{
		Name: image.Name, Reference: image.Spec.Source.Reference, Digest: digest,
		DiskSize: image.Spec.DiskSize.Int64(), HardwareModel: image.Spec.HardwareModel,
		// An image with a Secret of the provider is available to all tenants.
		Private: image.Spec.PullSecretRef != nil && image.Spec.PullSecretRef.Namespace == tenant,
	}
}

// credentials returns a function that reads the image's Secret, or nil if the image needs no
// Secret. The API server permits a node to read the Secrets in namespace rules.NamespaceImages and
// those that its pods name. The placeholder pod names the Secret if it is in the pod's namespace.
func (c *Cache) credentials(image *imagev1alpha1.MacOSImage) func(context.Context) ([]byte, error) {
	ref := image.Spec.PullSecretRef
	if ref == nil {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		secret, err := c.Kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("the Mac may not read Secret %s/%s (spec.pullSecretRef); use a Secret in namespace %s, or in the namespace of the instance: %w",
				ref.Namespace, ref.Name, rules.NamespaceImages, err)
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("Secret %s/%s (spec.pullSecretRef) does not exist: %w", ref.Namespace, ref.Name, err)
		case err != nil:
			return nil, fmt.Errorf("failed to read Secret %s/%s (spec.pullSecretRef): %w", ref.Namespace, ref.Name, err)
		}
		config := secret.Data[corev1.DockerConfigJsonKey]
		if secret.Type != corev1.SecretTypeDockerConfigJson || len(config) == 0 {
			return nil, fmt.Errorf("Secret %s/%s (spec.pullSecretRef) has type %q; use a Secret of type %s that is not empty", ref.Namespace, ref.Name, secret.Type, corev1.SecretTypeDockerConfigJson)
		}
		return config, nil
	}
}

func (c *Cache) event(on *corev1.ObjectReference, eventType, reason, message string) {
	c.Recorder.Event(on, eventType, reason, apiclient.Message(message))
}

// onEvent returns a function that turns the store's events into Kubernetes events. Pull events
// go to the object that needs the image; eviction events go to the MacNode, because they concern
// operators.
func (c *Cache) onEvent(on *corev1.ObjectReference) func(images.Event) {
	return func(e images.Event) {
		object := on
		if e.Reason == images.EventEvicted {
			if macNode, err := c.MacNode.Cached(); err == nil {
				object = objects.MacNodeRef(macNode)
			}
			c.Queue.Add(queue.MacNode())
		}
		c.event(object, corev1.EventTypeNormal, e.Reason, e.Message)
	}
}
