package imagestatus

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/images/verify"
	"macrack.io/macrack/pkg/rules"
)

const (
	// firstCheckWait is the initial wait before a repeated check, which doubles up to maxCheckWait.
	firstCheckWait = 15 * time.Second
	maxCheckWait   = 10 * time.Minute
	// checkTimeout bounds one check against a slow registry.
	checkTimeout = time.Minute
	// maxResults is the limit of results in a MacNode.
	maxResults = 32
)

// Checker verifies the images that the controllers cannot verify. The MacNode reports the results.
type Checker struct {
	cache  *Cache
	client versioned.Interface
	clock  clock.PassiveClock
	results
	schedule
}

// schedule has the time at which the agent looks for images again.
type schedule struct {
	mu       sync.Mutex
	interval time.Duration
	next     time.Time
	// idle means that no image awaits a Mac.
	idle bool
}

// NewChecker returns a Checker.
func NewChecker(cache *Cache, client versioned.Interface, c clock.PassiveClock) *Checker {
	return &Checker{cache: cache, client: client, clock: c}
}

// results holds results by image name.
type results struct {
	mu    sync.Mutex
	known map[string]*result
}

type result struct {
	found    rackv1alpha1.ImageCheck
	failures int
	next     time.Time
}

// SetSchedule sets the interval at which CheckDue looks for images. While the schedule is idle, no
// image awaits a Mac. A changed interval begins at a random time, so that the agents of a fleet do
// not all look at once.
func (c *Checker) SetSchedule(interval time.Duration, idle bool) {
	c.schedule.mu.Lock()
	defer c.schedule.mu.Unlock()
	if interval != c.interval || idle != c.idle {
		c.interval, c.idle, c.next = interval, idle, c.clock.Now().Add(rand.N(interval))
	}
}

// CheckDue verifies the images that await a Mac if the interval since the last time has passed.
func (c *Checker) CheckDue(ctx context.Context) {
	if c.takeTurn(c.hasResults()) {
		c.CheckAll(ctx)
	}
}

// takeTurn reports whether the interval has passed, to within half a tick of the caller. A time
// that is too far ahead is that of a clock that was set back. Without images, a turn is only for
// dropping the results of earlier ones.
func (c *Checker) takeTurn(hasResults bool) bool {
	c.schedule.mu.Lock()
	defer c.schedule.mu.Unlock()
	if c.idle && !hasResults {
		return false
	}
	now := c.clock.Now()
	if wait := c.next.Sub(now); wait > rules.MinimumImageCheckInterval/2 && wait <= c.interval {
		return false
	}
	c.next = now.Add(c.interval)
	return true
}

// CheckAll verifies the images that await a Mac. It skips images with a tenant's Secret: only a
// Mac that runs an instance of the tenant may read that Secret.
func (c *Checker) CheckAll(ctx context.Context) {
	list, err := c.client.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{
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
		if !image.AwaitsMac() {
			continue
		}
		awaiting[image.Name] = image.Generation
		if ref := image.Spec.PullSecretRef; ref != nil && ref.Namespace != rules.NamespaceImages || !c.due(image, c.clock.Now()) {
			continue
		}
		if err := c.check(ctx, image, ""); err != nil {
			klog.InfoS("Image not verified", "image", image.Name, "reference", image.Spec.Source.Reference, "digest", image.Spec.Source.Digest, "err", err)
		}
	}
	if c.prune(awaiting) {
		c.cache.Queue.Add(queue.MacNode())
	}
}

// check verifies an image in its registry, for one tenant or for all, and reports the result.
func (c *Checker) check(ctx context.Context, image *imagev1alpha1.MacOSImage, tenant string) error {
	checkCtx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("the registry did not respond within %s", checkTimeout))
	defer cancel()
	err := c.cache.Store.Check(checkCtx, describe(image, tenant), images.Needs{Credentials: c.cache.credentials(image)})
	if ctx.Err() != nil {
		return ctx.Err() // a canceled check has no result
	}
	found := rackv1alpha1.ImageCheck{Name: image.Name, ObservedGeneration: image.Generation, Reason: verify.Reason(err)}
	if err != nil {
		found.Message = apiclient.Message(err.Error())
	}
	if c.add(found, c.clock.Now()) {
		c.cache.Queue.Add(queue.MacNode())
	}
	return err
}

func (r *results) hasResults() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known) > 0
}

// due reports whether an image must be checked now.
func (r *results) due(image *imagev1alpha1.MacOSImage, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	check := r.known[image.Name]
	return check == nil || check.found.ObservedGeneration != image.Generation || !now.Before(check.next)
}

// add stores a result and reports whether it differs from the last one.
func (r *results) add(found rackv1alpha1.ImageCheck, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	check := r.known[found.Name]
	if check == nil || check.found.ObservedGeneration != found.ObservedGeneration {
		check = &result{}
	}
	changed := check.found != found
	check.found = found
	check.next = now.Add(min(firstCheckWait<<min(check.failures, 16), maxCheckWait))
	check.failures++
	if r.known == nil {
		r.known = map[string]*result{}
	}
	r.known[found.Name] = check
	return changed
}

// prune drops the results of images that no longer await a Mac, by name and generation. It reports
// whether it dropped any.
func (r *results) prune(awaiting map[string]int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.known)
	maps.DeleteFunc(r.known, func(name string, check *result) bool {
		generation, found := awaiting[name]
		return !found || generation != check.found.ObservedGeneration
	})
	return len(r.known) != before
}

// Results returns the results by name. Above the limit, verified images take precedence, because
// they can become Ready.
func (r *results) Results() []rackv1alpha1.ImageCheck {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []rackv1alpha1.ImageCheck
	for _, check := range r.known {
		found = append(found, check.found)
	}
	byName := func(a, b rackv1alpha1.ImageCheck) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(found, byName)
	if len(found) > maxResults {
		slices.SortStableFunc(found, func(a, b rackv1alpha1.ImageCheck) int { return cmp.Compare(rank(a), rank(b)) })
		found = found[:maxResults]
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
