package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/apiclient"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/images/ociclient"
)

// slowStore is a store whose pulls the test controls.
type slowStore struct {
	images.Store
	asked chan images.Needs
	fate  chan error // of a pull; nil lets it happen, and all after it

	mu         sync.Mutex
	released   bool
	progress   images.Progress
	unfinished []images.Cached
}

func (s *slowStore) Ensure(ctx context.Context, image images.Image, needs images.Needs) (images.Cached, error) {
	s.mu.Lock()
	released := s.released
	s.mu.Unlock()
	if released {
		return s.Store.Ensure(ctx, image, needs)
	}
	s.asked <- needs
	select {
	case err := <-s.fate:
		if err != nil {
			return images.Cached{}, err
		}
		s.mu.Lock()
		s.released = true
		s.mu.Unlock()
		return s.Store.Ensure(ctx, image, needs)
	case <-ctx.Done():
		return images.Cached{}, ctx.Err()
	}
}

func (s *slowStore) Progress(string) (images.Progress, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress, true
}

func (s *slowStore) Unfinished() ([]images.Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unfinished, nil
}

func slowRack(t *testing.T, fake *clocktesting.FakeClock) (*rack, *slowStore) {
	s := &slowStore{asked: make(chan images.Needs, 100), fate: make(chan error)}
	r := newRack(t, func(r *rack) {
		if fake != nil {
			r.clock = fake
		}
		s.Store = &images.Simulated{Dir: filepath.Join(r.dir, "images"), Clock: r.clock}
		r.images = s
	})
	return r, s
}

func (r *rack) imageReady(name string) metav1.Condition {
	c := meta.FindStatusCondition(r.instance(name).Status.Conditions, instancev1alpha1.MacOSInstanceImageReady)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

// events returns the events on an object, as "reason: message".
func (r *rack) events(kind, name string) []string {
	list, err := r.kube.CoreV1().Events("").List(r.ctx, metav1.ListOptions{})
	require.NoError(r.t, err)
	var all []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.InvolvedObject.UID != "" {
			all = append(all, e.Reason+": "+e.Message)
		}
	}
	return all
}

func (r *rack) waitEvent(kind, name, event string) {
	r.t.Helper()
	r.eventually(func() bool { return strings.Contains(strings.Join(r.events(kind, name), "\n"), event) }, func() any { return r.events(kind, name) })
}

func TestProgressOfImages(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r, s := slowRack(t, fake)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.UID = "uid-mac" })
	i := newInstance("one")
	r.create(i, newPod(i))
	needs := <-s.asked
	assert.Nil(t, needs.Credentials)
	assert.EqualValues(t, configv1alpha1.DefaultMinimumFree, needs.MinimumFree)
	kept, err := needs.Keep()
	require.NoError(t, err)
	assert.Equal(t, []string{"macos-26"}, kept, "what an instance uses is not evicted")
	r.waitPhase("one", instancev1alpha1.MacOSInstancePulling)
	assert.Equal(t, "Pulling image macos-26", r.imageReady("one").Message)

	s.mu.Lock()
	s.progress = images.Progress{Done: 3 << 30, Total: 12 << 30}
	s.mu.Unlock()
	before := r.instance("one").ResourceVersion
	fake.Step(imagestatus.ProgressInterval - time.Millisecond)
	assert.Equal(t, before, r.instance("one").ResourceVersion, "it says so now and then only")
	fake.Step(time.Millisecond)
	r.eventually(func() bool {
		return r.imageReady("one").Message == "Pulling image macos-26: 25% (3.0 GiB of 12.0 GiB)"
	}, func() any { return r.imageReady("one") })
	assert.Equal(t, instancev1alpha1.ReasonPulling, r.imageReady("one").Reason)

	needs.OnEvent(images.Event{Reason: images.EventPulled, Message: "Pulled image macos-26 in 3s"})
	r.waitEvent("MacOSInstance", "one", "Pulled: Pulled image macos-26 in 3s")
	needs.OnEvent(images.Event{Reason: images.EventEvicted, Message: "Removed image old"})
	r.waitEvent("MacNode", nodeName, "Evicted: Removed image old")
	assert.NotContains(t, strings.Join(r.events("MacOSInstance", "one"), "\n"), "Evicted", "what else is on the Mac is not the tenant's business")

	s.fate <- nil
	r.eventually(func() bool { return r.imageReady("one").Status == metav1.ConditionTrue }, func() any { return r.instance("one").Status })
}

func TestWhyAnImageIsMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		reason string
	}{
		"no room":      {&images.NoRoomError{Image: "macos-26", Needed: 60 << 30, Free: 10 << 30}, instancev1alpha1.ReasonInsufficientStorage},
		"unauthorized": {&ociclient.StatusError{Host: "registry.example.com", Code: 401}, instancev1alpha1.ReasonPullUnauthorized},
		"no rights":    {apierrors.NewForbidden(corev1.Resource("secrets"), "robot", errors.New("no relationship found")), instancev1alpha1.ReasonPullUnauthorized},
		"not there":    {fmt.Errorf("pulling: %w", &ociclient.StatusError{Host: "registry.example.com", Code: 404}), instancev1alpha1.ReasonImageNotFound},
		"else":         {errors.New(strings.Repeat("x", 3000)), instancev1alpha1.ReasonPullFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := slowRack(t, nil)
			i := newInstance("one")
			r.create(i, newPod(i))
			s.fate <- tc.err
			r.eventually(func() bool { return r.imageReady("one").Reason == tc.reason }, func() any { return r.imageReady("one") })
			condition := r.imageReady("one")
			assert.Equal(t, metav1.ConditionFalse, condition.Status)
			assert.Contains(t, condition.Message, "Failed to pull image macos-26: "+tc.err.Error()[:20])
			assert.LessOrEqual(t, len(condition.Message), apiclient.MaxMessage)
			r.waitEvent("MacOSInstance", "one", tc.reason+": Failed to pull image macos-26")
			s.fate <- nil // it is tried again
			r.waitPhase("one", instancev1alpha1.MacOSInstanceRunning)
		})
	}
}

// An image is removed behind the agent's back.
func TestMacNodeListsTheImagesOnDisk(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) { r.clock = fake })
	r.run("one")
	held := func() []rackv1alpha1.CachedImage { return r.macNode().Status.Images }
	r.eventually(func() bool { return len(held()) == 1 }, func() any { return held() })
	require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "images")))
	fake.Step(imagesInterval)
	r.eventually(func() bool { return len(held()) == 0 }, func() any { return held() })
}

func TestMinimumFreeIsConfigured(t *testing.T) {
	r, s := slowRack(t, nil)
	_, err := r.macrack.ConfigV1alpha1().RackConfigs().Create(r.ctx, &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName},
		Spec:       configv1alpha1.RackConfigSpec{ImageCache: configv1alpha1.ImageCacheConfig{MinimumFree: ptr(scalar.MustParse("7Gi"))}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually(func() bool { return r.agent.minimumFree.Load() == 7<<30 }, func() any { return r.agent.minimumFree.Load() })
	i := newInstance("one")
	r.create(i, newPod(i))
	assert.EqualValues(t, 7<<30, (<-s.asked).MinimumFree)
	s.fate <- nil
}

// A stop does not wait for a pull, and prefetches do not delay instances.
func TestStopEndsAPull(t *testing.T) {
	r, s := slowRack(t, nil)
	i := newInstance("one")
	r.create(i, newPod(i))
	<-s.asked
	r.waitPhase("one", instancev1alpha1.MacOSInstancePulling)
	r.changeInstance("one", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{By: tenant, Reason: "Asked"}
	})
	r.waitPhase("one", instancev1alpha1.MacOSInstanceStopped)
	assert.Empty(t, r.instance("one").Status.MachineID)
}

// A stop that arrives before the pull is registered still cancels the pull.
func TestStopJustBeforeAPull(t *testing.T) {
	for name, test := range map[string]struct {
		stop func(r *rack)
		is   func(error) bool
	}{
		"stop": {func(r *rack) {
			r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.StopRequest = &instancev1alpha1.StopRequest{} })
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"instance gone": {func(r *rack) { r.loseInstance("a") }, apierrors.IsNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := slowRack(t, nil)
			i := newInstance("a")
			r.create(i, nil)
			r.waitCondition(rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree")
			r.eventually(func() bool { return !r.agent.stopper.MayNotStart(i) }, func() any { return nil })
			test.stop(r)
			r.eventually(func() bool { return r.agent.stopper.MayNotStart(i) }, func() any { return nil })
			image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(t.Context(), i.Spec.ImageName, metav1.GetOptions{})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, _, err = r.agent.puller.Pull(ctx, i, image)
			assert.True(t, test.is(err), "%v", err)
		})
	}
}
