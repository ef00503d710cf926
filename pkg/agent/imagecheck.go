package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/images/verify"
	"macrack.io/macrack/pkg/rules"
)

const (
	// imageCheckInterval is the interval at which the agent looks for images that the controllers
	// cannot verify. It is also the initial wait before a repeated check, which doubles up to
	// maxImageCheckWait.
	imageCheckInterval = 15 * time.Second
	maxImageCheckWait  = 10 * time.Minute
	// imageCheckTimeout bounds one check against a slow registry.
	imageCheckTimeout = time.Minute
	// maxImageChecks is the limit of results in a MacNode.
	maxImageChecks = 32
)

// imageChecks holds, by image name, the results for images that the controllers cannot verify. The
// MacNode reports them.
type imageChecks struct {
	mu    sync.Mutex
	known map[string]*imageCheck
}

type imageCheck struct {
	found    rackv1alpha1.ImageCheck
	failures int
	next     time.Time
}

// awaitsMac reports whether the controllers failed to verify an image, so that a Mac has to.
func awaitsMac(image *imagev1alpha1.MacOSImage) bool {
	ready := meta.FindStatusCondition(image.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
	if image.Status.Phase != imagev1alpha1.MacOSImagePending || ready == nil || ready.ObservedGeneration != image.Generation {
		return false
	}
	switch ready.Reason {
	case imagev1alpha1.ReasonUnreachable, imagev1alpha1.ReasonUnauthorized, imagev1alpha1.ReasonPullSecretUnreadable:
		return true
	}
	return false
}

// verifyImages verifies the images that await a Mac. It skips images with a tenant's Secret: only a
// Mac that runs an instance of the tenant may read that Secret.
func (a *Agent) verifyImages(ctx context.Context) {
	list, err := a.config.Macrack.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("status.phase", string(imagev1alpha1.MacOSImagePending)).String(),
		ResourceVersion: "0",
	})
	if err != nil {
		klog.ErrorS(err, "Failed to list the images to verify")
		return
	}
	awaiting := map[string]int64{}
	for i := range list.Items {
		image := &list.Items[i]
		if !awaitsMac(image) {
			continue
		}
		awaiting[image.Name] = image.Generation
		if ref := image.Spec.PullSecretRef; ref != nil && ref.Namespace != rules.NamespaceImages || !a.checks.due(image, a.config.Clock.Now()) {
			continue
		}
		if err := a.verifyImage(ctx, image, ""); err != nil {
			klog.InfoS("Image not verified", "image", image.Name, "reference", image.Spec.Source.Reference, "digest", image.Spec.Source.Digest, "err", err)
		}
	}
	if a.checks.prune(awaiting) {
		a.queue.Add(key{kind: macNodeKey})
	}
}

// verifyImage verifies an image in its registry, for one tenant or for all, and reports the result.
func (a *Agent) verifyImage(ctx context.Context, image *imagev1alpha1.MacOSImage, tenant string) error {
	checkCtx, cancel := context.WithTimeoutCause(ctx, imageCheckTimeout, fmt.Errorf("the registry did not respond within %s", imageCheckTimeout))
	defer cancel()
	err := a.config.Images.Check(checkCtx, source(image, tenant), images.Needs{Credentials: a.credentials(image)})
	if ctx.Err() != nil {
		return ctx.Err() // a canceled check has no result
	}
	found := rackv1alpha1.ImageCheck{Name: image.Name, ObservedGeneration: image.Generation, Reason: verify.Reason(err)}
	if err != nil {
		found.Message = apiclient.Message(err.Error())
	}
	if a.checks.add(found, a.config.Clock.Now()) {
		a.queue.Add(key{kind: macNodeKey})
	}
	return err
}

// due reports whether an image must be checked now.
func (c *imageChecks) due(image *imagev1alpha1.MacOSImage, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	check := c.known[image.Name]
	return check == nil || check.found.ObservedGeneration != image.Generation || !now.Before(check.next)
}

// add stores a result and reports whether it differs from the last one.
func (c *imageChecks) add(found rackv1alpha1.ImageCheck, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	check := c.known[found.Name]
	if check == nil || check.found.ObservedGeneration != found.ObservedGeneration {
		check = &imageCheck{}
	}
	news := check.found != found
	check.found = found
	check.next = now.Add(min(imageCheckInterval<<min(check.failures, 16), maxImageCheckWait))
	check.failures++
	if c.known == nil {
		c.known = map[string]*imageCheck{}
	}
	c.known[found.Name] = check
	return news
}

// prune drops the results of images that no longer await a Mac, by name and generation. It reports
// whether it dropped any.
func (c *imageChecks) prune(awaiting map[string]int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.known)
	maps.DeleteFunc(c.known, func(name string, check *imageCheck) bool {
		generation, found := awaiting[name]
		return !found || generation != check.found.ObservedGeneration
	})
	return len(c.known) != before
}

// list returns the results by name. Above the limit, verified images take precedence, because they
// can become Ready.
func (c *imageChecks) list() []rackv1alpha1.ImageCheck {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []rackv1alpha1.ImageCheck
	for _, check := range c.known {
		found = append(found, check.found)
	}
	byName := func(a, b rackv1alpha1.ImageCheck) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(found, byName)
	if len(found) > maxImageChecks {
		slices.SortStableFunc(found, func(a, b rackv1alpha1.ImageCheck) int { return cmp.Compare(rank(a), rank(b)) })
		found = found[:maxImageChecks]
		slices.SortFunc(found, byName)
	}
	return found
}

func rank(check rackv1alpha1.ImageCheck) int {
	if check.Reason == verify.Reason(nil) {
		return 0
	}
	return 1
}
