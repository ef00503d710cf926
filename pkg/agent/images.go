package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/rules"
)

const (
	// progressInterval is the interval at which an instance's status reports pull progress.
	progressInterval = 5 * time.Second
	// imagesInterval is the interval at which the images on the disk are listed.
	imagesInterval = 10 * time.Second
)

// Reasons of the condition ImageReady.
const (
	// reasonCached: the image is on the Mac.
	reasonCached = "Cached"

	reasonPulling      = instancev1alpha1.ReasonPulling
	reasonPullFailed   = instancev1alpha1.ReasonPullFailed
	reasonNotFound     = instancev1alpha1.ReasonImageNotFound
	reasonUnauthorized = instancev1alpha1.ReasonPullUnauthorized
	reasonNoRoom       = instancev1alpha1.ReasonInsufficientStorage
)

// pull makes the image available on the Mac and reports progress meanwhile. A stop of the instance
// cancels it. It returns the updated instance.
func (a *Agent) pull(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) (*instancev1alpha1.MacOSInstance, images.Cached, error) {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	uid := instance.UID
	a.mu.Lock()
	a.pulls[uid] = cancel
	a.mu.Unlock()
	if a.mayNotStart(instance) {
		cancel() // the stop came before this pull was registered
	}
	defer func() {
		a.mu.Lock()
		delete(a.pulls, uid)
		a.mu.Unlock()
	}()
	// The error of the last try stays visible until this try makes progress.
	if instance.Status.MachineID == "" && !pullFailed(instance) && !a.isCached(image) {
		var err error
		if instance, err = a.updated(ctx, instance, pulling(a, instance, image, "")); err != nil {
			return nil, images.Cached{}, err
		}
	}

	type result struct {
		images.Cached
		err error
	}
	ticker := a.config.Clock.NewTicker(progressInterval)
	defer ticker.Stop()
	done := make(chan result, 1)
	go func() {
		if awaitsMac(image) {
			if err := a.verifyImage(pullCtx, image, instance.Namespace); err != nil {
				done <- result{err: err}
				return
			}
		}
		cached, err := a.config.Images.Ensure(pullCtx, source(image, instance.Namespace), images.Needs{
			Credentials: a.credentials(image),
			MinimumFree: a.minimumFree.Load(),
			Keep:        func() ([]string, error) { return a.imagesInUse() },
			OnEvent:     a.imageEvents(instanceRef(instance)),
		})
		done <- result{cached, err}
	}()
	for {
		select {
		case <-ticker.C():
			instance = a.showProgress(ctx, instance, image)
		case r := <-done:
			if r.err == nil {
				a.queue.Add(key{kind: macNodeKey}) // the MacNode lists the images
				return instance, r.Cached, nil
			}
			if pullCtx.Err() == nil {
				a.showPullError(ctx, instance, image, r.err)
			}
			return nil, images.Cached{}, fmt.Errorf("image %s: %w", image.Name, r.err)
		}
	}
}

// pulling returns a status change to phase Pulling.
func pulling(a *Agent, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, progress string) func(*instancev1alpha1.MacOSInstanceStatus) {
	return func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstancePulling
		s.Message = "Pulling image " + image.Name
		if progress != "" {
			s.Message += ": " + progress
		}
		a.condition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionFalse, reasonPulling, s.Message)
	}
}

// pullFailed reports whether the last pull of the instance's image failed.
func pullFailed(instance *instancev1alpha1.MacOSInstance) bool {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason != reasonPulling
}

// show updates the status of an instance during a pull and returns the updated instance.
func (a *Agent) show(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) *instancev1alpha1.MacOSInstance {
	written, err := a.updated(ctx, instance, change)
	if err != nil {
		klog.ErrorS(err, "Failed to report pull progress", "instance", klog.KObj(instance))
		return instance
	}
	return written
}

// showProgress reports the pull progress and returns the updated instance. A failed report is
// repeated at the next interval.
func (a *Agent) showProgress(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) *instancev1alpha1.MacOSInstance {
	progress, found := a.config.Images.Progress(image.Name)
	if !found || instance.Status.MachineID != "" || (progress.Total == 0 && pullFailed(instance)) {
		return instance
	}
	return a.show(ctx, instance, pulling(a, instance, image, progress.String()))
}

func (a *Agent) showPullError(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, err error) {
	reason := reasonPullFailed
	var noRoom *images.NoRoomError
	switch {
	case errors.As(err, &noRoom):
		reason = reasonNoRoom
	case ociclient.IsUnauthorized(err), apierrors.IsForbidden(err):
		reason = reasonUnauthorized
	case ociclient.IsNotFound(err):
		reason = reasonNotFound
	}
	message := apiclient.Message(fmt.Sprintf("Failed to pull image %s: %v", image.Name, err))
	before := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	if before == nil || before.Reason != reason || before.Message != message {
		a.event(instanceRef(instance), corev1.EventTypeWarning, reason, message)
	}
	a.show(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Message = message
		a.condition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionFalse, reason, message)
	})
}

func (a *Agent) isCached(image *imagev1alpha1.MacOSImage) bool {
	cached, err := a.config.Images.List()
	return err == nil && slices.ContainsFunc(cached, func(c images.Cached) bool { return c.Name == image.Name && c.Digest == image.Spec.Source.Digest })
}

// source describes an image to the store, for a tenant.
func source(image *imagev1alpha1.MacOSImage, tenant string) images.Image {
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
func (a *Agent) credentials(image *imagev1alpha1.MacOSImage) func(context.Context) ([]byte, error) {
	ref := image.Spec.PullSecretRef
	if ref == nil {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		secret, err := a.config.Kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
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

// imagesInUse returns the images of the instances on this Mac that have not ended.
func (a *Agent) imagesInUse(more ...string) ([]string, error) {
	all, err := a.instances.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, instance := range all {
		if instance.Status.NodeName == a.config.NodeName && !rules.InstanceEnded(instance.Status.Phase) {
			more = append(more, instance.Spec.ImageName)
		}
	}
	return more, nil
}

func instanceRef(instance *instancev1alpha1.MacOSInstance) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: instancev1alpha1.SchemeGroupVersion.String(), Kind: "MacOSInstance",
		Namespace: instance.Namespace, Name: instance.Name, UID: instance.UID,
	}
}

func macNodeRef(macNode *rackv1alpha1.MacNode) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: rackv1alpha1.SchemeGroupVersion.String(), Kind: "MacNode", Name: macNode.Name, UID: macNode.UID,
	}
}

func (a *Agent) event(on *corev1.ObjectReference, eventType, reason, message string) {
	a.recorder.Event(on, eventType, reason, apiclient.Message(message))
}

// imageEvents returns a function that turns the store's events into Kubernetes events. Pull events
// go to the object that needs the image; eviction events go to the MacNode, because they concern
// operators.
func (a *Agent) imageEvents(on *corev1.ObjectReference) func(images.Event) {
	return func(e images.Event) {
		if e.Reason == images.EventEvicted {
			if macNode, err := a.macNodes.Get(a.config.NodeName); err == nil {
				on = macNodeRef(macNode)
			}
			a.queue.Add(key{kind: macNodeKey})
		}
		a.event(on, corev1.EventTypeNormal, e.Reason, e.Message)
	}
}

// lookAtImages queues the MacNode if the images on the disk changed, for example because an
// operator removed one.
func (a *Agent) lookAtImages() {
	cached, err := a.config.Images.List()
	if err != nil {
		klog.ErrorS(err, "Failed to list the images on the disk")
		return
	}
	macNode, err := a.macNodes.Get(a.config.NodeName)
	if err == nil && !slices.EqualFunc(cached, macNode.Status.Images, func(c images.Cached, r rackv1alpha1.CachedImage) bool {
		return c.Name == r.Name && c.Digest == r.Digest
	}) {
		a.queue.Add(key{kind: macNodeKey})
	}
}
