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
	// progressInterval is how often an instance's status says how far its image is.
	progressInterval = 5 * time.Second
	// imagesInterval is how often the images on the disk are looked at.
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

// pull makes sure that the image is on the Mac, and says meanwhile how far it is. A
// stop ends it. It returns the instance as it is then.
func (a *Agent) pull(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) (*instancev1alpha1.MacOSInstance, images.Cached, error) {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	uid := instance.UID
	a.mu.Lock()
	a.pulls[uid] = cancel
	a.mu.Unlock()
	if a.mayNotStart(instance) {
		cancel() // the stop came before there was anything to cancel
	}
	defer func() {
		a.mu.Lock()
		delete(a.pulls, uid)
		a.mu.Unlock()
	}()
	// What the last try failed with stays to be read until this one gets on.
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
				a.queue.Add(key{kind: macNodeKey}) // the MacNode lists its images
				return instance, r.Cached, nil
			}
			if pullCtx.Err() == nil {
				a.showPullError(ctx, instance, image, r.err)
			}
			return nil, images.Cached{}, fmt.Errorf("image %s: %w", image.Name, r.err)
		}
	}
}

// pulling returns a change of status to Pulling.
func pulling(a *Agent, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, progress string) func(*instancev1alpha1.MacOSInstanceStatus) {
	return func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstancePulling
		s.Message = "Fetching image " + image.Name
		if progress != "" {
			s.Message += ": " + progress
		}
		a.condition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionFalse, reasonPulling, s.Message)
	}
}

// pullFailed tells whether the last try to fetch the instance's image failed.
func pullFailed(instance *instancev1alpha1.MacOSInstance) bool {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason != reasonPulling
}

// show writes to the status of an instance whose image is being fetched, and returns the instance as it is then.
func (a *Agent) show(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) *instancev1alpha1.MacOSInstance {
	written, err := a.updated(ctx, instance, change)
	if err != nil {
		klog.ErrorS(err, "How an image gets on was not reported", "instance", klog.KObj(instance))
		return instance
	}
	return written
}

// showProgress says how far the image is, and returns the instance as it is then. If
// it fails, the next time will do.
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
	message := apiclient.Message(fmt.Sprintf("Image %s could not be fetched: %v", image.Name, err))
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

// source returns what the store needs to know of an image that a tenant wants.
func source(image *imagev1alpha1.MacOSImage, tenant string) images.Image {
	digest := image.Status.Digest
	if digest == "" {
		digest = image.Spec.Source.Digest
	}
	return images.Image{
		Name: image.Name, Reference: image.Spec.Source.Reference, Digest: digest,
		DiskSize: image.Spec.DiskSize.Int64(), HardwareModel: image.Spec.HardwareModel,
		// With a Secret of the provider's it is everybody's image.
		Private: image.Spec.PullSecretRef != nil && image.Spec.PullSecretRef.Namespace == tenant,
	}
}

// credentials returns what reads the image's Secret; nil if it needs none. The API
// server lets a node read the Secrets that pods on it name, which the placeholder pod
// does if the Secret is in its namespace, and those in namespace rules.NamespaceImages.
func (a *Agent) credentials(image *imagev1alpha1.MacOSImage) func(context.Context) ([]byte, error) {
	ref := image.Spec.PullSecretRef
	if ref == nil {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		secret, err := a.config.Kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("the Mac may not read Secret %s/%s (spec.pullSecretRef): it may read those in namespace %s, and in the tenant's namespace those of the images of its instances: %w",
				ref.Namespace, ref.Name, rules.NamespaceImages, err)
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("there is no Secret %s/%s (spec.pullSecretRef): %w", ref.Namespace, ref.Name, err)
		case err != nil:
			return nil, fmt.Errorf("reading Secret %s/%s (spec.pullSecretRef): %w", ref.Namespace, ref.Name, err)
		}
		config := secret.Data[corev1.DockerConfigJsonKey]
		if secret.Type != corev1.SecretTypeDockerConfigJson || len(config) == 0 {
			return nil, fmt.Errorf("Secret %s/%s (spec.pullSecretRef) has the type %s: it must be %s", ref.Namespace, ref.Name, secret.Type, corev1.SecretTypeDockerConfigJson)
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

// imageEvents returns what makes Kubernetes' events of the store's: of a pull on the
// object that wants the image, of evictions on the MacNode, as they concern its operators.
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

// lookAtImages has the MacNode brought up to date when the images on the disk are not what they were: somebody may
// have removed one.
func (a *Agent) lookAtImages() {
	cached, err := a.config.Images.List()
	if err != nil {
		klog.ErrorS(err, "The images on the disk cannot be listed")
		return
	}
	macNode, err := a.macNodes.Get(a.config.NodeName)
	if err == nil && !slices.EqualFunc(cached, macNode.Status.Images, func(c images.Cached, r rackv1alpha1.CachedImage) bool {
		return c.Name == r.Name && c.Digest == r.Digest
	}) {
		a.queue.Add(key{kind: macNodeKey})
	}
}
