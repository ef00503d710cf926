package macosimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

func anImage(reference, digest string, status imagev1alpha1.MacOSImageStatus) *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "tahoe"},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: reference, Digest: digest}},
		Status:     status,
	}
}

func aMac(serial string, images ...rackv1alpha1.CachedImage) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		Spec:   rackv1alpha1.MacNodeSpec{SerialNumber: serial},
		Status: rackv1alpha1.MacNodeStatus{Images: images},
	}
}

// A fixture reconciles one image.
type fixture struct {
	*testutil.Cluster
	*reconciler
	*fakeVerifier
	image    *imagev1alpha1.MacOSImage // as in the cache
	enqueued fakeQueue
}

// fakeVerifier verifies references and digests, and counts the verifications.
type fakeVerifier struct {
	result   error
	verified atomic.Int32
}

func (v *fakeVerifier) Verify(_ context.Context, spec *imagev1alpha1.MacOSImageSpec) error {
	v.verified.Add(1)
	if err := verify.Source(spec.Source); err != nil {
		return err
	}
	return v.result
}

// fakeQueue receives the keys.
type fakeQueue chan string

func (q fakeQueue) Enqueue(key string) { q <- key }

func newFixture(t *testing.T, image *imagev1alpha1.MacOSImage, macs ...*rackv1alpha1.MacNode) *fixture {
	f := &fixture{
		Cluster:      testutil.NewCluster(t, time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)),
		fakeVerifier: &fakeVerifier{},
		image:        image,
		enqueued:     make(fakeQueue, 100),
	}
	f.Add(image)
	f.cacheMacs(macs...)
	f.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
		f.image = object.(*imagev1alpha1.MacOSImage)
		f.Cache(f.image)
		return "status", nil
	})
	f.reconciler = newReconciler(f.Dependencies, newVerifications(f.Clock, f.fakeVerifier, f.enqueued))
	return f
}

func (f *fixture) cacheMacs(macs ...*rackv1alpha1.MacNode) {
	for i, mac := range macs {
		mac.Name = cmp.Or(mac.Name, fmt.Sprintf("mac-%d", i))
		f.Cache(mac)
	}
}

// change changes the image as the registry does.
func (f *fixture) change(t *testing.T, change func(*imagev1alpha1.MacOSImage)) {
	f.image = f.image.DeepCopy()
	change(f.image)
	f.Cache(f.image)
	require.NoError(t, f.MacRack.(*fake.Clientset).Tracker().Update(imagev1alpha1.SchemeGroupVersion.WithResource("macosimages"), f.image, ""))
}

// run reconciles until no verification runs, and returns the wait until the next reconciliation;
// zero for none.
func (f *fixture) run(t *testing.T) time.Duration {
	t.Helper()
	wait := f.step(t)
	if f.running() {
		assert.Equal(t, "tahoe", <-f.enqueued)
		wait = f.step(t)
	}
	assert.Empty(t, f.enqueued, "an image is enqueued once per verification")
	return wait
}

// running reports whether a verification runs, or has ended since the last reconciliation.
func (f *fixture) running() bool {
	f.verifications.mu.Lock()
	defer f.verifications.mu.Unlock()
	v := f.verifications.images["tahoe"]
	return v != nil && v.running || len(f.enqueued) > 0
}

// step reconciles once.
func (f *fixture) step(t *testing.T) time.Duration {
	t.Helper()
	cached, original := f.image, f.image.DeepCopy()
	due, err := f.reconcile(t.Context(), "tahoe")
	require.NoError(t, err)
	assert.Equal(t, original, cached, "the cache was changed")
	if due.IsZero() {
		return 0
	}
	return due.Sub(f.Clock.Now())
}

func (f *fixture) ready(t *testing.T) *metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(f.image.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
	require.NotNil(t, c)
	assert.Equal(t, f.image.Generation, c.ObservedGeneration)
	assert.Equal(t, f.image.Status.Phase == imagev1alpha1.MacOSImageReady, c.Status == metav1.ConditionTrue)
	return c
}

const ref = "registry.example.com/macos/26:xcode-26"

func TestReady(t *testing.T) {
	unknown := &ociclient.StatusError{Host: "registry.example.com", Code: http.StatusNotFound, Message: "manifest unknown"}
	for _, tt := range []struct {
		name              string
		reference, digest string
		result            error
		phase             imagev1alpha1.MacOSImagePhase
		reason, message   string
		again             [2]time.Duration // at least and at most; zero for never
	}{
		{"verified", ref, digestA, nil, "Ready", "Verified", "", [2]time.Duration{}},
		{"pinned twice", "registry.example.com/macos/26@" + digestA, digestA, nil, "Ready", "Verified", "", [2]time.Duration{}},
		{"no digest", ref, "", nil, "Failed", "Malformed", `invalid spec.source.digest ""; use sha256: and 64 lowercase hexadecimal digits`, [2]time.Duration{}},
		{"an upper-case digest", ref, "sha256:" + strings.Repeat("A", 64), nil, "Failed", "Malformed", "64 lowercase hexadecimal digits", [2]time.Duration{}},
		{"a digest of another kind", ref, "sha512:" + strings.Repeat("a", 128), nil, "Failed", "Malformed", "use sha256:", [2]time.Duration{}},
		{"no reference", "tahoe", digestA, nil, "Failed", "Malformed", `invalid spec.source.reference "tahoe"`, [2]time.Duration{}},
		{"pinned to two things", "registry.example.com/macos/26@" + digestB, digestA, nil, "Failed", "Malformed",
			"spec.source.reference has the digest " + digestB + ", but spec.source.digest is " + digestA, [2]time.Duration{}},
		{"unknown", ref, digestA, unknown, "Failed", "ManifestUnknown", "registry registry.example.com responds with 404 Not Found: manifest unknown", [2]time.Duration{unknownRetry, unknownRetry}},
		{"no image", ref, digestA, &verify.ReasonError{Reason: "Malformed", Err: errors.New("no image")}, "Failed", "Malformed", "no image", [2]time.Duration{}},
		{"an incomplete image", ref, digestA, &verify.ReasonError{Reason: "Incomplete", Err: errors.New("no aux")}, "Failed", "Incomplete", "no aux", [2]time.Duration{}},
		{"refused", ref, digestA, &ociclient.StatusError{Host: "r", Code: http.StatusForbidden}, "Pending", "Unauthorized", "403 Forbidden", [2]time.Duration{minRetry / 2, minRetry}},
		{"away", ref, digestA, errors.New("connection refused"), "Pending", "Unreachable", "connection refused", [2]time.Duration{minRetry / 2, minRetry}},
		{"overloaded", ref, digestA, &ociclient.StatusError{Host: "r", Code: http.StatusServiceUnavailable}, "Pending", "Unreachable", "503", [2]time.Duration{minRetry / 2, minRetry}},
		{"a long message", ref, digestA, errors.New(strings.Repeat("ß", 4000)), "Pending", "Unreachable", "ß...", [2]time.Duration{minRetry / 2, minRetry}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, anImage(tt.reference, tt.digest, imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImagePending}))
			f.result = tt.result
			again := f.run(t)
			assert.EqualValues(t, 1, f.verified.Load())
			assert.Equal(t, tt.phase, f.image.Status.Phase)
			c := f.ready(t)
			assert.Equal(t, tt.reason, c.Reason)
			assert.Contains(t, c.Message, tt.message)
			assert.Equal(t, c.Message, f.image.Status.Message)
			assert.LessOrEqual(t, len(c.Message), apiclient.MaxMessage)
			if tt.phase == imagev1alpha1.MacOSImageReady {
				assert.Equal(t, tt.digest, f.image.Status.Digest)
			} else {
				assert.Empty(t, f.image.Status.Digest)
			}
			assert.GreaterOrEqual(t, again, tt.again[0])
			assert.LessOrEqual(t, again, tt.again[1])

			f.run(t)
			assert.EqualValues(t, 1, f.verified.Load(), "not before it is due")
		})
	}
}

func TestAnImageThatFailsIsVerifiedAgain(t *testing.T) {
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}))
	f.result = errors.New("connection refused")
	longest := time.Duration(0)
	for n := range 20 {
		again := f.run(t)
		assert.EqualValues(t, n+1, f.verified.Load())
		assert.Equal(t, "Unreachable", f.ready(t).Reason)
		assert.Positive(t, again)
		longest = max(longest, again)
		f.Clock.Step(again)
	}
	assert.LessOrEqual(t, longest, maxRetry)
	assert.GreaterOrEqual(t, longest, maxRetry/2)
	f.result = nil
	assert.Zero(t, f.run(t))
	assert.Equal(t, "Verified", f.ready(t).Reason)
	assert.Empty(t, f.image.Status.Message)
	assert.Empty(t, f.verifications.images, "the findings of a Ready image are dropped")
}

func TestACorrectedSpecIsVerifiedAtOnce(t *testing.T) {
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}))
	f.result = &ociclient.StatusError{Code: http.StatusNotFound}
	f.run(t)
	assert.Equal(t, "ManifestUnknown", f.ready(t).Reason)

	f.result = nil
	f.change(t, func(image *imagev1alpha1.MacOSImage) {
		image.Spec.Source.Digest, image.Generation, image.Status.Phase = digestB, 2, imagev1alpha1.MacOSImagePending
	})
	f.run(t)
	assert.EqualValues(t, 2, f.verified.Load())
	assert.Equal(t, "Verified", f.ready(t).Reason)
	assert.Equal(t, digestB, f.image.Status.Digest)

	again := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}))
	again.result = errors.New("away")
	again.run(t)
	again.change(t, func(image *imagev1alpha1.MacOSImage) { image.UID = "another of the same name" })
	again.run(t)
	assert.EqualValues(t, 2, again.verified.Load())
}

func TestReconciliationDoesNotWaitForAVerification(t *testing.T) {
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}))
	blocked := blockedVerifier{release: make(chan struct{}), started: make(chan struct{}, 10)}
	f.reconciler = newReconciler(f.Dependencies, newVerifications(f.Clock, blocked, f.enqueued))
	assert.Zero(t, f.step(t))
	assert.Equal(t, imagev1alpha1.MacOSImagePending, f.image.Status.Phase)
	assert.Equal(t, "Verifying", f.ready(t).Reason)
	f.step(t)
	close(blocked.release)
	<-f.enqueued
	f.step(t)
	assert.Equal(t, "Verified", f.ready(t).Reason)
	assert.Len(t, blocked.started, 1, "one at a time")
}

// blockedVerifier reports each start, and ends when it is released.
type blockedVerifier struct {
	release, started chan struct{}
	result           error
}

func (v blockedVerifier) Verify(context.Context, *imagev1alpha1.MacOSImageSpec) error {
	v.started <- struct{}{}
	<-v.release
	return v.result
}

// Ready is final, so a Mac's finding does not anticipate that of the controllers.
func TestMacsDoNotAnticipateAVerification(t *testing.T) {
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}), checking(rackv1alpha1.ImageCheck{Name: "tahoe", Reason: "Verified"}))
	blocked := blockedVerifier{make(chan struct{}), make(chan struct{}, 10), &verify.ReasonError{Reason: "Malformed", Err: errors.New("no image")}}
	f.reconciler = newReconciler(f.Dependencies, newVerifications(f.Clock, blocked, f.enqueued))
	f.step(t)
	assert.Equal(t, "Verifying", f.ready(t).Reason)
	close(blocked.release)
	<-f.enqueued
	f.step(t)
	assert.Equal(t, "Malformed", f.ready(t).Reason)
	assert.Equal(t, imagev1alpha1.MacOSImageFailed, f.image.Status.Phase)
}

func TestReadyIsFinal(t *testing.T) {
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady, Digest: digestA}))
	f.result = errors.New("away")
	f.run(t)
	assert.Zero(t, f.verified.Load())
	assert.Equal(t, "Asserted", f.ready(t).Reason, "the image has not been verified")
	before := f.image
	f.run(t)
	assert.Same(t, before, f.image)

	require.NoError(t, f.MacOSImages.Informer().GetStore().Delete(f.image))
	assert.Zero(t, f.run(t), "gone")
}

func TestMacsVerifyImagesThatTheControllersCannotReach(t *testing.T) {
	check := func(generation int64, reason string) rackv1alpha1.ImageCheck {
		return rackv1alpha1.ImageCheck{Name: "tahoe", ObservedGeneration: generation, Reason: reason, Message: "why"}
	}
	mac := func(name string, checks ...rackv1alpha1.ImageCheck) *rackv1alpha1.MacNode {
		return &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: rackv1alpha1.MacNodeStatus{ImageChecks: checks}}
	}
	away := errors.New("away")
	for name, tt := range map[string]struct {
		result          error
		macs            []*rackv1alpha1.MacNode
		phase           imagev1alpha1.MacOSImagePhase
		reason, message string
	}{
		"a Mac verified it":           {away, []*rackv1alpha1.MacNode{mac("mac-1"), mac("mac-2", check(3, "Verified"))}, "Ready", "Verified", "Verified by Mac mac-2"},
		"another generation of it":    {away, []*rackv1alpha1.MacNode{mac("mac-2", check(2, "Verified"))}, "Pending", "Unreachable", "away"},
		"another image":               {away, []*rackv1alpha1.MacNode{mac("mac-2", rackv1alpha1.ImageCheck{Name: "sonoma", ObservedGeneration: 3, Reason: "Verified"})}, "Pending", "Unreachable", "away"},
		"the Mac cannot either":       {away, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "Unreachable"))}, "Pending", "Unreachable", "away"},
		"it is unknown there":         {away, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "ManifestUnknown")), mac("mac-1", check(3, "Malformed"))}, "Failed", "Malformed", "Mac mac-1: why"},
		"one Mac verified it":         {away, []*rackv1alpha1.MacNode{mac("mac-1", check(3, "ManifestUnknown")), mac("mac-2", check(3, "Verified"))}, "Ready", "Verified", "Verified by Mac mac-2"},
		"an unknown reason":           {away, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "Whatever"))}, "Pending", "Unreachable", "away"},
		"a reason of the server":      {away, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "Asserted"))}, "Pending", "Unreachable", "away"},
		"the controllers know better": {&verify.ReasonError{Reason: "Malformed", Err: errors.New("no image")}, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "Verified"))}, "Failed", "Malformed", "no image"},
		"the Secret is the tenant's":  {&verify.ReasonError{Reason: "PullSecretUnreadable", Err: errors.New("forbidden")}, []*rackv1alpha1.MacNode{mac("mac-2", check(3, "Verified"))}, "Ready", "Verified", "mac-2"},
	} {
		t.Run(name, func(t *testing.T) {
			image := anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{})
			image.Generation = 3
			f := newFixture(t, image)
			f.result = tt.result
			f.run(t)
			f.cacheMacs(tt.macs...)
			f.run(t)
			assert.Equal(t, tt.phase, f.image.Status.Phase)
			assert.Equal(t, tt.reason, f.ready(t).Reason)
			assert.Contains(t, f.ready(t).Message, tt.message)
		})
	}
}

func TestReplicas(t *testing.T) {
	held := func(name, digest string, size int64) rackv1alpha1.CachedImage {
		return rackv1alpha1.CachedImage{Name: name, Digest: digest, SizeBytes: size}
	}
	f := newFixture(t, anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{}),
		aMac("S-2", held("tahoe", digestA, 40)), aMac("S-1", held("sonoma", digestA, 90), held("tahoe", digestA, 50)),
		aMac("S-3", held("tahoe", digestB, 60)), aMac("S-4", held("sonoma", digestA, 70)), aMac("S-5"))
	f.run(t)
	assert.Equal(t, []string{"S-1", "S-2"}, f.image.Status.ReplicatedOn)
	assert.EqualValues(t, 50, f.image.Status.SizeBytes)

	f.cacheMacs(aMac("S-1"), aMac("S-2"), aMac("S-3"), aMac("S-4"), aMac("S-5"))
	f.run(t)
	assert.Empty(t, f.image.Status.ReplicatedOn)
	assert.EqualValues(t, 50, f.image.Status.SizeBytes, "the size is kept")
}

func checking(checks ...rackv1alpha1.ImageCheck) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{Status: rackv1alpha1.MacNodeStatus{ImageChecks: checks}}
}

func TestChangedImages(t *testing.T) {
	a, b := rackv1alpha1.CachedImage{Name: "a", Digest: digestA}, rackv1alpha1.CachedImage{Name: "b", Digest: digestA}
	newA := a
	newA.Digest = digestB
	for _, tt := range []struct {
		name          string
		before, after *rackv1alpha1.MacNode
		want          []string
	}{
		{"new", nil, aMac("S", b, a), []string{"a", "b"}},
		{"gone", aMac("S", a), nil, []string{"a"}},
		{"unchanged", aMac("S", a, b), aMac("S", b, a), nil},
		{"one came, one went", aMac("S", a), aMac("S", b), []string{"a", "b"}},
		{"another digest", aMac("S", a, b), aMac("S", newA, b), []string{"a"}},
		{"another finding", checking(rackv1alpha1.ImageCheck{Name: "a", Reason: "Unreachable"}), checking(rackv1alpha1.ImageCheck{Name: "a", Reason: "Verified"}), []string{"a"}},
		{"the same finding", checking(rackv1alpha1.ImageCheck{Name: "a"}), checking(rackv1alpha1.ImageCheck{Name: "a"}), nil},
	} {
		assert.Equal(t, tt.want, changedImages(tt.before, tt.after), tt.name)
	}
}
