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
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/apiclient"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
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
	fake.Step(progressInterval - time.Millisecond)
	assert.Equal(t, before, r.instance("one").ResourceVersion, "it says so now and then only")
	fake.Step(time.Millisecond)
	r.eventually(func() bool {
		return r.imageReady("one").Message == "Pulling image macos-26: 25% (3.0 GiB of 12.0 GiB)"
	}, func() any { return r.imageReady("one") })
	assert.Equal(t, reasonPulling, r.imageReady("one").Reason)

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
		"no room":      {&images.NoRoomError{Image: "macos-26", Needed: 60 << 30, Free: 10 << 30}, reasonNoRoom},
		"unauthorized": {&ociclient.StatusError{Host: "registry.example.com", Code: 401}, reasonUnauthorized},
		"no rights":    {apierrors.NewForbidden(corev1.Resource("secrets"), "robot", errors.New("no relationship found")), reasonUnauthorized},
		"not there":    {fmt.Errorf("pulling: %w", &ociclient.StatusError{Host: "registry.example.com", Code: 404}), reasonNotFound},
		"else":         {errors.New(strings.Repeat("x", 3000)), reasonPullFailed},
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

func TestCredentialsOfImages(t *testing.T) {
	r, s := slowRack(t, nil)
	const config = `{"auths":{}}`
	for _, secret := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "robot"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "macrack-images", Name: "opaque"}, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"password": []byte("hunter2")}},
	} {
		_, err := r.kube.CoreV1().Secrets(secret.Namespace).Create(r.ctx, secret, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	r.onKube.prepend("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "globex" {
			return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "robot", errors.New("no relationship found between node and this object"))
		}
		return false, nil, nil
	})
	image := func(namespace, name string) *imagev1alpha1.MacOSImage {
		return &imagev1alpha1.MacOSImage{Spec: imagev1alpha1.MacOSImageSpec{PullSecretRef: &imagev1alpha1.SecretReference{Namespace: namespace, Name: name}}}
	}
	data, err := r.agent.credentials(image(tenant, "robot"))(r.ctx)
	require.NoError(t, err)
	assert.Equal(t, config, string(data))
	for says, image := range map[string]*imagev1alpha1.MacOSImage{
		"the Mac may not read Secret globex/robot (spec.pullSecretRef); use a Secret in namespace macrack-images": image("globex", "robot"),
		"Secret acme/other (spec.pullSecretRef) does not exist":                                                   image(tenant, "other"),
		"has type \"Opaque\"; use a Secret of type kubernetes.io/dockerconfigjson":                                image("macrack-images", "opaque"),
	} {
		_, err := r.agent.credentials(image)(r.ctx)
		require.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	assert.Nil(t, r.agent.credentials(&imagev1alpha1.MacOSImage{}))
	assert.True(t, source(image(tenant, "robot"), tenant).Private, "it leaves with the tenant")
	assert.False(t, source(image("macrack-images", "robot"), tenant).Private, "it is everybody's")
	_ = s
}

// An image is removed behind the agent's back.
func TestImagesOnTheMacNodeAreTrue(t *testing.T) {
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

// A partial pull of a tenant's image is scrubbed like a complete one.
func TestScrubRemovesUnfinishedPrivateImages(t *testing.T) {
	r, s := slowRack(t, nil)
	dir := filepath.Join(r.dir, "images", "secret")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	s.mu.Lock()
	s.unfinished = []images.Cached{{Name: "secret", Private: true}, {Name: "public"}}
	s.mu.Unlock()
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool { return r.macNode().Status.Scrub != nil }, func() any { return r.macNode().Status })
	assert.Contains(t, r.macNode().Status.Scrub.Removed, "images/secret")
	assert.NotContains(t, strings.Join(r.macNode().Status.Scrub.Removed, " "), "public")
	assert.NoDirExists(t, dir)
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

func TestPrefetchesTakeTurns(t *testing.T) {
	r, s := slowRack(t, nil)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, name := range names {
		_, err := r.macrack.ImageV1alpha1().MacOSImages().Create(r.ctx, &imagev1alpha1.MacOSImage{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Digest: "sha256:" + name}, DiskSize: scalar.MustParse("1Mi")},
			Status:     imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.PrefetchImages = names })
	needs := <-s.asked
	kept, err := needs.Keep()
	require.NoError(t, err)
	assert.Equal(t, names, kept, "they are not evicted for one another")
	// Other work continues during the pull.
	i := newInstance("one")
	r.create(i, newPod(i))
	<-s.asked
	r.waitPhase("one", instancev1alpha1.MacOSInstancePulling)
	assert.Empty(t, s.asked, "no second prefetch has begun")
	s.fate <- nil
	s.fate <- nil
	r.waitPhase("one", instancev1alpha1.MacOSInstanceRunning)
}
