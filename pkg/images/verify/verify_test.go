package verify

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

// world is a registry and its content.
type world struct {
	t      *testing.T
	host   string
	client *ociclient.Client
}

// newWorld creates a registry whose requests pass through before, which may respond to them.
func newWorld(t *testing.T, before func(w http.ResponseWriter, r *http.Request) bool) *world {
	backend := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || before == nil || !before(w, r) {
			backend.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	w := &world{t: t, host: strings.TrimPrefix(server.URL, "http://")}
	var err error
	w.client, err = ociclient.New(ociclient.Options{Reference: w.host + "/macos:x", Clock: clock.RealClock{}, Wait: time.Millisecond, Attempts: 2, Stall: 200 * time.Millisecond})
	require.NoError(t, err)
	return w
}

func blob(content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(content), Size: int64(len(content))}
}

func (w *world) pushBlob(content []byte) ocispec.Descriptor {
	_, err := w.client.PushBlob(w.t.Context(), blob(content), content)
	require.NoError(w.t, err)
	return blob(content)
}

func (w *world) pushManifest(content []byte) string {
	d := blob(content)
	d.MediaType = ocispec.MediaTypeImageManifest
	require.NoError(w.t, w.client.PushManifest(w.t.Context(), d, content))
	return d.Digest.String()
}

// image pushes an image in MacRack's format and returns the digest of its manifest.
func (w *world) image(config string, aux bool) string {
	c := w.pushBlob([]byte(config))
	c.MediaType = format.MediaTypeConfig
	disk := &format.Chunk{Blob: w.pushBlob([]byte("disk")), Size: 1 << 20, Data: 1 << 20}
	var nvram *format.Chunk
	if aux {
		nvram = &format.Chunk{Blob: w.pushBlob([]byte("nvram")), Size: 100}
	}
	manifest, err := format.Manifest(c, []format.Chunk{*disk}, nvram)
	require.NoError(w.t, err)
	return w.pushManifest(manifest)
}

func (w *world) verify(digest, diskSize, hardwareModel string) error {
	return Image(w.t.Context(), w.client, &imagev1alpha1.MacOSImageSpec{
		Source: imagev1alpha1.ImageSource{Reference: w.host + "/macos:x", Digest: digest}, DiskSize: scalar.MustParse(diskSize), HardwareModel: hardwareModel,
	})
}

const goodConfig = `{"diskSize":1048576,"hardwareModel":"bW9kZWw="}`

func TestImage(t *testing.T) {
	w := newWorld(t, nil)
	good := w.image(goodConfig, true)
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{}})
	require.NoError(t, err)
	indexBlob := blob(index)
	indexBlob.MediaType = ocispec.MediaTypeImageIndex
	require.NoError(t, w.client.PushManifest(t.Context(), indexBlob, index))
	missing := blob([]byte(`{"diskSize":1}`))
	missing.MediaType = format.MediaTypeConfig
	noConfig, err := format.Manifest(missing, nil, nil)
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		digest, diskSize, model string
		reason, message         string
	}{
		"an image":                        {good, "1Mi", "", "Verified", ""},
		"a larger disk":                   {good, "60Gi", "", "Verified", ""},
		"a smaller disk":                  {good, "1023Ki", "", "DiskTooLarge", "has 1048576 bytes; spec.diskSize is 1047552 bytes and must not be less"},
		"a model in the spec":             {w.image(`{"diskSize":1048576}`, true), "1Mi", "bW9kZWw=", "Verified", ""},
		"no model":                        {w.image(`{"diskSize":1048577}`, true), "2Mi", "", "Incomplete", "set spec.hardwareModel, or push the image again"},
		"no auxiliary storage":            {w.image(goodConfig, false), "1Mi", "", "Incomplete", "no auxiliary storage"},
		"a model that is not base64":      {w.image(`{"diskSize":1048576,"hardwareModel":"?"}`, true), "1Mi", "", "Malformed", "not base64"},
		"a config that is not JSON":       {w.image(`hello`, true), "1Mi", "", "Malformed", "the config: "},
		"a disk without a size":           {w.image(`{"hardwareModel":"bW9kZWw="}`, true), "1Mi", "", "Malformed", "the disk size in the config is 0 bytes"},
		"an image of a container":         {w.pushManifest([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json"}}`)), "1Mi", "", "Malformed", "unknown image format"},
		"an index":                        {indexBlob.Digest.String(), "1Mi", "", "Malformed", "pin the manifest itself"},
		"a config that was never pushed":  {w.pushManifest(noConfig), "1Mi", "", "Incomplete", "config of the image: "},
		"a digest that is nowhere":        {digest.FromString("nothing").String(), "1Mi", "", "ManifestUnknown", "responds with 404"},
		"an identifier that is no base64": {w.image(`{"diskSize":1048576,"hardwareModel":"bW9kZWw=","machineIdentifier":"?"}`, true), "1Mi", "", "Malformed", "the machine identifier is not base64"},
	} {
		err := w.verify(tt.digest, tt.diskSize, tt.model)
		assert.Equal(t, tt.reason, Reason(err), "%s: %v", name, err)
		if tt.message != "" {
			assert.ErrorContains(t, err, tt.message, name)
		}
	}
}

// An image whose instances have its own machine identifier must contain it.
func TestImageWithItsOwnIdentity(t *testing.T) {
	w := newWorld(t, nil)
	spec := &imagev1alpha1.MacOSImageSpec{DiskSize: scalar.MustParse("1Mi"), Identity: imagev1alpha1.ImageIdentityFromImage}
	for config, reason := range map[string]string{
		goodConfig: "Incomplete",
		`{"diskSize":1048576,"hardwareModel":"bW9kZWw=","machineIdentifier":"aWQ="}`: "Verified",
	} {
		spec.Source = imagev1alpha1.ImageSource{Reference: w.host + "/macos:x", Digest: w.image(config, true)}
		err := Image(t.Context(), w.client, spec)
		assert.Equal(t, reason, Reason(err), "%v", err)
	}
}

func TestRegistriesThatDoNotAnswer(t *testing.T) {
	status := func(code int) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	for name, tt := range map[string]struct {
		before func(w http.ResponseWriter, r *http.Request) bool
		reason string
	}{
		"401": {status(http.StatusUnauthorized), "Unauthorized"},
		"403": {status(http.StatusForbidden), "Unauthorized"},
		"404": {status(http.StatusNotFound), "ManifestUnknown"},
		"429": {status(http.StatusTooManyRequests), "Unreachable"},
		"500": {status(http.StatusInternalServerError), "Unreachable"},
		"302 to plain text": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return true
		}, "Unreachable"},
		"a page of HTML": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
			return true
		}, "Unreachable"},
		"something else": {func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, "{}"); return true }, "Unreachable"},
		"without an end": {func(w http.ResponseWriter, r *http.Request) bool {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					break
				}
			}
			return true
		}, "Unreachable"},
		"nothing": {func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, "Unreachable"},
	} {
		w := newWorld(t, tt.before)
		err := w.verify(digest.FromString("x").String(), "1Mi", "")
		assert.Equal(t, tt.reason, Reason(err), "%s: %v", name, err)
		assert.NotContains(t, err.Error(), "<")
	}
	client, err := ociclient.New(ociclient.Options{Reference: "127.0.0.1:1/macos", Clock: clock.RealClock{}, Wait: time.Millisecond})
	require.NoError(t, err)
	err = Image(t.Context(), client, &imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Digest: digest.FromString("x").String()}})
	assert.Equal(t, "Unreachable", Reason(err), "connection refused")
	assert.Equal(t, "Unreachable", Reason(errors.New("any other")))
}

func TestCredential(t *testing.T) {
	secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example.com":{"username":"alice","password":"secret"}}}`)}}
	get, err := Credential(secret)
	require.NoError(t, err)
	credential, err := get(t.Context(), "registry.example.com")
	require.NoError(t, err)
	assert.Equal(t, "alice", credential.Username)
	credential, err = get(t.Context(), "registry.example.org")
	require.NoError(t, err)
	assert.Empty(t, credential.Password, "of another registry")

	for _, wrong := range []*corev1.Secret{
		{Type: corev1.SecretTypeOpaque, Data: secret.Data},
		{Type: corev1.SecretTypeDockerConfigJson},
		{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`secret`)}},
	} {
		_, err := Credential(wrong)
		assert.Equal(t, "PullSecretUnreadable", Reason(err))
		assert.NotContains(t, err.Error(), "secret:")
	}
}
