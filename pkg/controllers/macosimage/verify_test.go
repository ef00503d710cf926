package macosimage

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
)

// pushImage pushes an image, and returns the spec of its MacOSImage.
func pushImage(t *testing.T, host string) *imagev1alpha1.MacOSImageSpec {
	client, err := ociclient.New(ociclient.Options{Reference: host + "/macos:26", Clock: clock.RealClock{}})
	require.NoError(t, err)
	push := func(content string) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: format.MediaTypeConfig, Digest: digest.FromString(content), Size: int64(len(content))}
		_, err := client.PushBlob(t.Context(), d, []byte(content))
		require.NoError(t, err)
		return d
	}
	manifest, err := format.Manifest(push(`{"diskSize":1048576,"hardwareModel":"bW9kZWw="}`), nil, &format.Chunk{Blob: push("nvram"), Size: 5})
	require.NoError(t, err)
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	require.NoError(t, client.PushManifest(t.Context(), d, manifest))
	return &imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: host + "/macos:26", Digest: d.Digest.String()}, DiskSize: scalar.MustParse("1Mi")}
}

// TestPrivateImages uses a registry that requires a password.
func TestPrivateImages(t *testing.T) {
	backend := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	open := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); !open && (user != "alice" || password != "secret") {
			w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	spec := pushImage(t, host)
	open = false
	secret := func(user, host string) *corev1.Secret {
		return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
			corev1.DockerConfigJsonKey: []byte(`{"auths":{"` + host + `":{"username":"` + user + `","password":"secret"}}}`)}}
	}
	for name, tt := range map[string]struct {
		ref    *imagev1alpha1.SecretReference
		secret *corev1.Secret
		err    error
		reason string
	}{
		"no Secret":               {nil, nil, nil, "Unauthorized"},
		"the Secret":              {&imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, secret("alice", host), nil, "Verified"},
		"another's":               {&imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, secret("mallory", host), nil, "Unauthorized"},
		"of another registry":     {&imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, secret("alice", "registry.example.com"), nil, "Unauthorized"},
		"one that does not exist": {&imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, nil, apierrors.NewNotFound(corev1.Resource("secrets"), "robot"), "PullSecretUnreadable"},
		"one that is forbidden":   {&imagev1alpha1.SecretReference{Namespace: "acme", Name: "robot"}, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "robot", nil), "PullSecretUnreadable"},
		"of another type":         {&imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, &corev1.Secret{Type: corev1.SecretTypeOpaque}, nil, "PullSecretUnreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			private := spec.DeepCopy()
			private.PullSecretRef = tt.ref
			core := kubefake.NewClientset()
			core.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
				assert.Equal(t, tt.ref.Namespace, action.GetNamespace())
				assert.Equal(t, tt.ref.Name, action.(clienttesting.GetAction).GetName())
				return true, tt.secret, tt.err
			})
			err := (&registryVerifier{secrets: core.CoreV1()}).Verify(t.Context(), private)
			assert.Equal(t, tt.reason, verify.Reason(err), "%v", err)
			if err != nil {
				assert.NotContains(t, err.Error(), "secret:")
			}
		})
	}
}

// verifyFunc verifies an image by its function.
type verifyFunc func(ctx context.Context) error

func (f verifyFunc) Verify(ctx context.Context, _ *imagev1alpha1.MacOSImageSpec) error { return f(ctx) }

// A slow registry delays neither images of other registries nor, beyond its share, its own.
func TestFewVerificationsRunAtOnce(t *testing.T) {
	var mu sync.Mutex
	running, most, ended := 0, 0, 0
	release, began, enqueued := make(chan struct{}), make(chan struct{}, 100), make(fakeQueue, 100)
	v := newVerifications(testingclock.NewFakePassiveClock(time.Unix(0, 0)), verifyFunc(func(ctx context.Context) error {
		_, limited := ctx.Deadline()
		assert.True(t, limited)
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		began <- struct{}{}
		<-release
		mu.Lock()
		running--
		ended++
		mu.Unlock()
		return nil
	}), enqueued)
	for i := range 3 * maxVerifying {
		image := anImage(ref, digestA, imagev1alpha1.MacOSImageStatus{})
		image.Name = string(rune('a' + i))
		found, due := v.finding(t.Context(), image)
		assert.Equal(t, "Verifying", found.reason)
		assert.Zero(t, due)
	}
	for range maxVerifying {
		<-began
	}
	close(release)
	for range 3 * maxVerifying {
		<-enqueued
	}
	assert.Equal(t, maxVerifying, most)
	assert.Equal(t, 3*maxVerifying, ended)
}

// A panic while an image is verified is a finding about that image, and does not end the
// controllers.
func TestVerificationPanics(t *testing.T) {
	enqueued := make(fakeQueue, 1)
	v := newVerifications(testingclock.NewFakePassiveClock(time.Unix(0, 0)), verifyFunc(func(context.Context) error {
		var layout *format.Layout
		_, err := layout.Complete([]byte("{}"))
		return err
	}), enqueued)
	image := &imagev1alpha1.MacOSImage{}
	v.finding(t.Context(), image)
	<-enqueued
	found, due := v.finding(t.Context(), image)
	assert.Equal(t, imagev1alpha1.ReasonMalformed, found.reason)
	assert.Contains(t, found.message, "the verification failed: runtime error")
	assert.Zero(t, due)
	assert.Eventually(t, func() bool { return len(v.slots) == 0 }, time.Minute, time.Millisecond, "the slot is free for the next image")
}
