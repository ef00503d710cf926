// Package macosimage verifies images in their registries, and records which Macs hold them.
package macosimage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	imageclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/image/v1alpha1"
	imagelisters "macrack.io/macrack/pkg/generated/listers/image/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// New returns the controller. Its keys are names of MacOSImages.
func New(deps *shared.Dependencies) *controller.Controller {
	queue := controller.NewQueue("macosimage")
	v := newVerifications(deps.Clock, &registryVerifier{secrets: deps.Core.CoreV1()}, queue)
	c := queue.Controller(deps.Clock, newReconciler(deps, v).reconcile)
	_, _ = deps.MacOSImages.Informer().AddEventHandler(controller.Handlers(func(before, after *imagev1alpha1.MacOSImage) {
		if after != nil {
			c.Enqueue(after.Name)
		} else {
			v.forget(before.Name)
		}
		if eventType, reason, message := describe(before, after); reason != "" {
			deps.Recorder.Event(after, eventType, reason, message)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		for _, name := range changedImages(before, after) {
			c.Enqueue(name)
		}
	}))
	return c
}

// changedImages returns the names of the images whose replica or finding on a Mac has changed.
func changedImages(before, after *rackv1alpha1.MacNode) []string {
	type known struct {
		digest, serial string
		size           int64
		check          rackv1alpha1.ImageCheck
	}
	images := func(mac *rackv1alpha1.MacNode) map[string]known {
		set := map[string]known{}
		if mac != nil {
			for _, image := range mac.Status.Images {
				set[image.Name] = known{digest: image.Digest, serial: mac.Spec.SerialNumber, size: image.SizeBytes}
			}
			for _, check := range mac.Status.ImageChecks {
				k := set[check.Name]
				k.check = check
				set[check.Name] = k
			}
		}
		return set
	}
	oldImages, newImages := images(before), images(after)
	var names []string
	for name := range oldImages {
		if oldImages[name] != newImages[name] {
			names = append(names, name)
		}
	}
	for name := range newImages {
		if _, found := oldImages[name]; !found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

type reconciler struct {
	clock         clock.PassiveClock
	images        imagelisters.MacOSImageLister
	macs          racklisters.MacNodeLister
	client        imageclient.MacOSImagesGetter
	verifications *verifications
}

func newReconciler(deps *shared.Dependencies, v *verifications) *reconciler {
	return &reconciler{
		clock:         deps.Clock,
		images:        deps.MacOSImages.Lister(),
		macs:          deps.MacNodes.Lister(),
		client:        deps.MacRack.ImageV1alpha1(),
		verifications: v,
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	image, err := r.images.Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	macs, err := r.macs.List(labels.Everything())
	if err != nil {
		return time.Time{}, err
	}
	updated := image.DeepCopy()
	setReplicas(updated, macs)
	due := r.setReady(ctx, updated, macs)
	if equality.Semantic.DeepEqual(image.Status, updated.Status) {
		return due, nil
	}
	_, err = shared.PatchStatus(ctx, r.client.MacOSImages(), image, updated)
	return due, err
}

// setReady writes the result of the image's verification, and returns the time of the next one.
// Ready is final, so a finding of a Mac counts only after the controllers have tried to verify the
// image.
func (r *reconciler) setReady(ctx context.Context, image *imagev1alpha1.MacOSImage, macs []*rackv1alpha1.MacNode) time.Time {
	if image.Status.Phase == imagev1alpha1.MacOSImageReady {
		r.verifications.forget(image.Name)
		if !meta.IsStatusConditionTrue(image.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition) {
			r.write(image, finding{imagev1alpha1.ReasonAsserted, "Phase set to Ready by a client other than macrack-controllers"})
		}
		return time.Time{}
	}
	found, due := r.verifications.finding(ctx, image)
	if isTemporary(found.reason) && found.reason != imagev1alpha1.ReasonVerifying {
		found = mergeMacFindings(found, image, macs)
	}
	r.write(image, found)
	if found.reason == imagev1alpha1.ReasonVerified {
		r.verifications.forget(image.Name)
		return time.Time{}
	}
	return due
}

// write writes a finding to the status of an image.
func (r *reconciler) write(image *imagev1alpha1.MacOSImage, found finding) {
	status := &image.Status
	condition := metav1.Condition{
		Type: imagev1alpha1.MacOSImageReadyCondition, Status: metav1.ConditionFalse, ObservedGeneration: image.Generation,
		Reason: found.reason, Message: found.message, LastTransitionTime: metav1.NewTime(r.clock.Now()).Rfc3339Copy(),
	}
	switch {
	case found.reason == imagev1alpha1.ReasonVerified, found.reason == imagev1alpha1.ReasonAsserted:
		status.Phase, status.Message, status.Digest = imagev1alpha1.MacOSImageReady, "", image.Spec.Source.Digest
		condition.Status = metav1.ConditionTrue
	case isTemporary(found.reason):
		status.Phase, status.Message, status.Digest = imagev1alpha1.MacOSImagePending, found.message, ""
	default:
		status.Phase, status.Message, status.Digest = imagev1alpha1.MacOSImageFailed, found.message, ""
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

// isTemporary reports whether an image that is not Ready for this reason is Pending, not Failed.
func isTemporary(reason string) bool {
	switch reason {
	case imagev1alpha1.ReasonVerifying, imagev1alpha1.ReasonUnreachable, imagev1alpha1.ReasonUnauthorized, imagev1alpha1.ReasonPullSecretUnreadable:
		return true
	}
	return false
}

// mergeMacFindings returns a Mac's finding if it settles whether the image can be used; else the
// controllers' finding. Of several Macs, one that has verified the image wins, then the one whose
// name is first.
func mergeMacFindings(found finding, image *imagev1alpha1.MacOSImage, macs []*rackv1alpha1.MacNode) finding {
	var settled *finding
	var by string
	for _, mac := range macs {
		for _, check := range mac.Status.ImageChecks {
			if check.Name != image.Name || check.ObservedGeneration != image.Generation || isTemporary(check.Reason) {
				continue
			}
			verified := check.Reason == imagev1alpha1.ReasonVerified
			best := settled == nil || verified && settled.reason != imagev1alpha1.ReasonVerified ||
				verified == (settled.reason == imagev1alpha1.ReasonVerified) && mac.Name < by
			if best {
				settled, by = &finding{check.Reason, check.Message}, mac.Name
			}
		}
	}
	switch {
	case settled == nil:
		return found
	case settled.reason == imagev1alpha1.ReasonVerified:
		return finding{settled.reason, fmt.Sprintf("Verified by Mac %s", by)}
	case !slices.Contains(permanent, settled.reason): // from another version of the agent
		return found
	}
	return finding{settled.reason, apiclient.Message(fmt.Sprintf("Mac %s: %s", by, settled.message))}
}

var permanent = []string{imagev1alpha1.ReasonManifestUnknown, imagev1alpha1.ReasonMalformed, imagev1alpha1.ReasonIncomplete, imagev1alpha1.ReasonDiskTooLarge}

// setReplicas records which Macs hold the pinned image, and its largest size on a Mac. The size
// stays when no Mac holds the image any longer.
func setReplicas(image *imagev1alpha1.MacOSImage, macs []*rackv1alpha1.MacNode) {
	var serials []string
	var size int64
	for _, mac := range macs {
		for _, held := range mac.Status.Images {
			if held.Name == image.Name && held.Digest == image.Spec.Source.Digest {
				serials = append(serials, mac.Spec.SerialNumber)
				size = max(size, held.SizeBytes)
			}
		}
	}
	slices.Sort(serials)
	image.Status.ReplicatedOn = slices.Compact(serials)
	image.Status.SizeBytes = cmp.Or(size, image.Status.SizeBytes)
}
