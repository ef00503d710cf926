// Package macosimage says which images can be used, and which Macs hold them.
package macosimage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"oras.land/oras-go/v2/registry"

	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/env"
	"macrack.io/macrack/pkg/controllers/runner"
)

// New returns the controller. Its keys are names of MacOSImages.
func New(e *env.Env) *runner.Controller {
	r := &reconciler{
		getImage: e.MacOSImages.Lister().Get,
		listMacs: func() ([]*rackv1alpha1.MacNode, error) { return e.MacNodes.Lister().List(labels.Everything()) },
		updateState: func(ctx context.Context, before, after *imagev1alpha1.MacOSImage) error {
			patch, err := apiclient.StatusPatch(before, after)
			if err != nil {
				return err
			}
			_, err = e.MacRack.ImageV1alpha1().MacOSImages().Patch(ctx, after.Name, apiclient.PatchType, patch, metav1.PatchOptions{FieldManager: env.FieldManager}, "status")
			return err
		},
	}
	c := runner.New("macosimage", e.Clock, r.reconcile)
	_, _ = e.MacOSImages.Informer().AddEventHandler(runner.Handlers(func(_, after *imagev1alpha1.MacOSImage) {
		if after != nil {
			c.Enqueue(after.Name)
		}
	}))
	_, _ = e.MacNodes.Informer().AddEventHandler(runner.Handlers(func(before, after *rackv1alpha1.MacNode) {
		for _, name := range changedImages(before, after) {
			c.Enqueue(name)
		}
	}))
	return c
}

// changedImages returns the names of the images of which a Mac holds something else than before.
func changedImages(before, after *rackv1alpha1.MacNode) []string {
	type held struct {
		digest, serial string
		size           int64
	}
	images := func(mac *rackv1alpha1.MacNode) map[string]held {
		set := map[string]held{}
		if mac != nil {
			for _, image := range mac.Status.Images {
				set[image.Name] = held{image.Digest, mac.Spec.SerialNumber, image.SizeBytes}
			}
		}
		return set
	}
	was, is := images(before), images(after)
	var names []string
	for name := range was {
		if was[name] != is[name] {
			names = append(names, name)
		}
	}
	for name := range is {
		if _, found := was[name]; !found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

type reconciler struct {
	getImage    func(name string) (*imagev1alpha1.MacOSImage, error)
	listMacs    func() ([]*rackv1alpha1.MacNode, error)
	updateState func(ctx context.Context, before, after *imagev1alpha1.MacOSImage) error
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	image, err := r.getImage(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	macs, err := r.listMacs()
	if err != nil {
		return time.Time{}, err
	}
	updated := image.DeepCopy()
	setPhase(updated)
	setReplicas(updated, macs)
	if equality.Semantic.DeepEqual(image.Status, updated.Status) {
		return time.Time{}, nil
	}
	return time.Time{}, r.updateState(ctx, image, updated)
}

// setPhase makes an image Ready whose source is pinned to content that can be verified, which each Mac does
// as it pulls it. Ready is final.
func setPhase(image *imagev1alpha1.MacOSImage) {
	status := &image.Status
	if status.Phase == imagev1alpha1.MacOSImageReady {
		return
	}
	if err := checkSource(image.Spec.Source); err != nil {
		status.Phase, status.Message, status.Digest = imagev1alpha1.MacOSImageFailed, err.Error(), ""
		return
	}
	status.Phase, status.Message, status.Digest = imagev1alpha1.MacOSImageReady, "", image.Spec.Source.Digest
}

func checkSource(source imagev1alpha1.ImageSource) error {
	pinned, err := digest.Parse(source.Digest)
	if err != nil || pinned.Algorithm() != digest.SHA256 {
		return fmt.Errorf("spec.source.digest %q is not sha256: and 64 hexadecimal digits, so the content cannot be verified", source.Digest)
	}
	reference, err := registry.ParseReference(source.Reference)
	if err != nil {
		return fmt.Errorf("spec.source.reference %q is not an OCI reference such as registry.example.com/macos/26:xcode-26: %w", source.Reference, err)
	}
	if other, err := reference.Digest(); err == nil && other != pinned {
		return fmt.Errorf("spec.source.reference names the digest %s, but spec.source.digest is %s", other, pinned)
	}
	return nil
}

// setReplicas notes which Macs hold the image as it is pinned, and how much room it takes on the Mac where it
// takes most. The size is kept when no Mac holds the image any more.
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
