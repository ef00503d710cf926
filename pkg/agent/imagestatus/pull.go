package imagestatus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/images/ociclient"
)

// ProgressInterval is the interval at which an instance's status reports pull progress.
const ProgressInterval = 5 * time.Second

// Reasons of the condition ImageReady.
const (
	// ReasonCached: the image is on the Mac.
	ReasonCached = "Cached"

	reasonPulling      = instancev1alpha1.ReasonPulling
	reasonPullFailed   = instancev1alpha1.ReasonPullFailed
	reasonNotFound     = instancev1alpha1.ReasonImageNotFound
	reasonUnauthorized = instancev1alpha1.ReasonPullUnauthorized
	reasonNoRoom       = instancev1alpha1.ReasonInsufficientStorage
)

// Gate reports whether an instance may not start, for example because it has to stop.
type Gate interface {
	MayNotStart(instance *instancev1alpha1.MacOSInstance) bool
}

// Puller pulls the images of instances.
type Puller struct {
	cache     *Cache
	checker   *Checker
	instances *objects.Instances
	gate      Gate
	clock     clock.WithTicker

	mu    sync.Mutex
	pulls map[types.UID]context.CancelFunc // pulls in progress, by instance
}

// NewPuller returns a Puller.
func NewPuller(cache *Cache, checker *Checker, gate Gate, c clock.WithTicker) *Puller {
	return &Puller{cache: cache, checker: checker, instances: cache.Instances, gate: gate, clock: c, pulls: map[types.UID]context.CancelFunc{}}
}

// Cancel cancels the image pull of an instance that has to stop.
func (p *Puller) Cancel(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cancel := p.pulls[uid]; cancel != nil {
		cancel()
	}
}

// register makes Cancel effective until done is called.
func (p *Puller) register(uid types.UID, cancel context.CancelFunc) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulls[uid] = cancel
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pulls, uid)
	}
}

// Pull makes the image available on the Mac and reports progress meanwhile. A stop of the instance
// cancels it. It returns the updated instance.
func (p *Puller) Pull(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) (*instancev1alpha1.MacOSInstance, images.Cached, error) {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.register(instance.UID, cancel)()
	if p.gate.MayNotStart(instance) {
		cancel() // the stop came before this pull was registered
	}
	// The error of the last try stays visible until this try makes progress.
	if instance.Status.MachineID == "" && !pullFailed(instance) && !p.cache.has(image) {
		var err error
		if instance, err = p.instances.Update(ctx, instance, p.pulling(instance, image, "")); err != nil {
			return nil, images.Cached{}, err
		}
	}

	type result struct {
		images.Cached
		err error
	}
	ticker := p.clock.NewTicker(ProgressInterval)
	defer ticker.Stop()
	done := make(chan result, 1)
	go func() {
		if image.AwaitsMac() {
			if err := p.checker.check(pullCtx, image, instance.Namespace); err != nil {
				done <- result{err: err}
				return
			}
		}
		cached, err := p.cache.ensure(pullCtx, image, instance.Namespace, objects.InstanceRef(instance))
		done <- result{cached, err}
	}()
	for {
		select {
		case <-ticker.C():
			instance = p.showProgress(ctx, instance, image)
		case r := <-done:
			if r.err == nil {
				return instance, r.Cached, nil
			}
			if pullCtx.Err() == nil {
				p.showError(ctx, instance, image, r.err)
			}
			return nil, images.Cached{}, fmt.Errorf("image %s: %w", image.Name, r.err)
		}
	}
}

// pulling returns a status change to phase Pulling.
func (p *Puller) pulling(instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, progress string) func(*instancev1alpha1.MacOSInstanceStatus) {
	return func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstancePulling
		s.Message = "Pulling image " + image.Name
		if progress != "" {
			s.Message += ": " + progress
		}
		p.instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionFalse, reasonPulling, s.Message)
	}
}

// pullFailed reports whether the last pull of the instance's image failed.
func pullFailed(instance *instancev1alpha1.MacOSInstance) bool {
	c := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason != reasonPulling
}

// show updates the status of an instance during a pull and returns the updated instance.
func (p *Puller) show(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) *instancev1alpha1.MacOSInstance {
	written, err := p.instances.Update(ctx, instance, change)
	if err != nil {
		klog.ErrorS(err, "Failed to report pull progress", "instance", klog.KObj(instance))
		return instance
	}
	return written
}

// showProgress reports the pull progress and returns the updated instance. A failed report is
// repeated at the next interval.
func (p *Puller) showProgress(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) *instancev1alpha1.MacOSInstance {
	progress, found := p.cache.Store.Progress(image.Name)
	if !found || instance.Status.MachineID != "" || (progress.Total == 0 && pullFailed(instance)) {
		return instance
	}
	return p.show(ctx, instance, p.pulling(instance, image, progress.String()))
}

func (p *Puller) showError(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, err error) {
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
		p.cache.event(objects.InstanceRef(instance), corev1.EventTypeWarning, reason, message)
	}
	p.show(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Message = message
		p.instances.SetCondition(s, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionFalse, reason, message)
	})
}
