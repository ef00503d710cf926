package macosimage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
)

const (
	// verifyTimeout bounds one verification, even if the registry does not answer.
	verifyTimeout = time.Minute
	// maxVerifying is the number of images that are verified at once.
	maxVerifying = 8
	// minRetry and maxRetry bound the wait before a Pending image is verified again.
	minRetry = 2 * time.Second
	maxRetry = 5 * time.Minute
	// unknownRetry is the wait before an image with an unknown manifest is verified again, as it
	// may be pushed later.
	unknownRetry = 10 * time.Minute
)

// A finding is the result of a verification: reason and message of the condition Ready.
type finding struct{ reason, message string }

// verifications has the images being verified, and the last findings of those that are not Ready.
type verifications struct {
	clock    clock.PassiveClock
	verifier verifier
	queue    queue
	slots    chan struct{}

	mu     sync.Mutex
	images map[string]*verification
}

// verifier verifies an image.
type verifier interface {
	Verify(ctx context.Context, spec *imagev1alpha1.MacOSImageSpec) error
}

// queue receives the name of each image whose verification has ended.
type queue interface {
	Enqueue(name string)
}

// A verification belongs to one generation of an image.
type verification struct {
	uid        types.UID
	generation int64
	running    bool
	failures   int
	found      finding
	next       time.Time // zero: never again
}

func newVerifications(clock clock.PassiveClock, verifier verifier, queue queue) *verifications {
	return &verifications{
		clock: clock, verifier: verifier, queue: queue,
		slots:  make(chan struct{}, maxVerifying),
		images: map[string]*verification{},
	}
}

// finding returns the finding of an image, and starts a verification in the background if one is
// due, because registries may be slow. Its end enqueues the image. due is the time of the next
// call.
func (v *verifications) finding(ctx context.Context, image *imagev1alpha1.MacOSImage) (found finding, due time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	current := v.images[image.Name]
	if current == nil || current.uid != image.UID || current.generation != image.Generation {
		current = &verification{uid: image.UID, generation: image.Generation, found: finding{reason: imagev1alpha1.ReasonVerifying}, next: v.clock.Now()}
		v.images[image.Name] = current
	}
	if !current.running && !current.next.IsZero() && !v.clock.Now().Before(current.next) {
		current.running = true
		go v.run(ctx, image.Name, image.Spec.DeepCopy(), current)
	}
	if current.running {
		return current.found, time.Time{}
	}
	return current.found, current.next
}

// run verifies an image.
func (v *verifications) run(ctx context.Context, name string, spec *imagev1alpha1.MacOSImageSpec, current *verification) {
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeoutCause(ctx, verifyTimeout, fmt.Errorf("the registry took more than %s", verifyTimeout))
	defer cancel()
	err := v.recovered(limited, spec)
	if ctx.Err() == nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	klog.FromContext(ctx).V(2).Info("Image verified", "image", name, "reference", spec.Source.Reference, "digest", spec.Source.Digest, "err", err)

	v.mu.Lock()
	defer v.mu.Unlock()
	current.running = false
	current.found = finding{reason: verify.Reason(err)}
	if err != nil {
		current.found.message = apiclient.Message(err.Error())
	}
	current.next = v.next(current)
	v.queue.Enqueue(name)
}

// recovered verifies an image and converts a panic to an error, so that a registry cannot crash the
// controllers.
func (v *verifications) recovered(ctx context.Context, spec *imagev1alpha1.MacOSImageSpec) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			klog.FromContext(ctx).Error(nil, "Verification of an image panicked", "reference", spec.Source.Reference, "panic", reason, "stack", string(debug.Stack()))
			err = &verify.ReasonError{Reason: imagev1alpha1.ReasonMalformed, Err: fmt.Errorf("the verification failed: %v", reason)}
		}
	}()
	return v.verifier.Verify(ctx, spec)
}

// next returns when an image is verified again.
func (v *verifications) next(current *verification) time.Time {
	switch {
	case isTemporary(current.found.reason):
		wait := min(minRetry<<min(current.failures, 16), maxRetry)
		current.failures++
		return v.clock.Now().Add(wait/2 + rand.N(wait/2+1))
	case current.found.reason == imagev1alpha1.ReasonManifestUnknown:
		return v.clock.Now().Add(unknownRetry)
	}
	return time.Time{}
}

func (v *verifications) forget(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.images, name)
}

// registryVerifier verifies images in their registries.
type registryVerifier struct{ secrets corev1client.SecretsGetter }

// Verify implements verifier.
func (v *registryVerifier) Verify(ctx context.Context, spec *imagev1alpha1.MacOSImageSpec) error {
	if err := verify.Source(spec.Source); err != nil {
		return err
	}
	options := ociclient.Options{Reference: spec.Source.Reference, Clock: clock.RealClock{}, Stall: 10 * time.Second, Attempts: 3}
	if ref := spec.PullSecretRef; ref != nil {
		secret, err := v.secrets.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return &verify.ReasonError{Reason: imagev1alpha1.ReasonPullSecretUnreadable,
				Err: fmt.Errorf("reading Secret %s/%s (spec.pullSecretRef): %w", ref.Namespace, ref.Name, err)}
		}
		if options.Credential, err = verify.Credential(secret); err != nil {
			return err
		}
	}
	client, err := ociclient.New(options)
	if err != nil {
		return &verify.ReasonError{Reason: imagev1alpha1.ReasonMalformed, Err: err}
	}
	return verify.Image(ctx, client, spec)
}
