package ociclient

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

func TestResponseOfRegistryIsShownOnce(t *testing.T) {
	for _, tt := range []struct{ contentType, body, message string }{
		{"application/json", `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, "manifest unknown"},
		{"application/json", `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"Manifest Unknown","detail":null}]}`, "manifest unknown"},
		{"application/json", `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"MANIFEST_UNKNOWN","detail":{"Tag":"x"}}]}`, "manifest unknown"},
		{"application/json", `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"Unknown manifest"}]}`, "manifest unknown"},
		{"application/json", `{"errors":[{"code":"DENIED","message":"quota exceeded","detail":"<nil>"}]}`, "denied: quota exceeded"},
		{"application/json", `{"errors":[{"code":"","message":"a proxy"},{"code":"DENIED","message":""}]}`, "a proxy; denied"},
		{"application/json", `{"errors":[]}`, ""},
		{"application/json", `{}`, ""},
		{"application/json", `{"errors":null}`, ""},
		{"application/json", `{"errors":[{"code":"UNKNOWN","message":"<html><head><title>502</title></head></html>"}]}`, "unknown: " + htmlMessage},
		{"application/json", `{"errors":[{"code":"UNKNOWN","message":"a < b"}]}`, "unknown: a < b"},
		{"text/html; charset=utf-8", `<html><h1>Bad Gateway</h1>`, htmlMessage},
		{"text/html", `{"errors":[{"code":"DENIED","message":"no"}]}`, htmlMessage},
		{"text/plain", "no such page", ""},
		{"", "", ""},
	} {
		c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", tt.contentType)
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(tt.body))
		}), true))
		pinned := digest.FromString("x")
		_, err := c.Manifest(t.Context(), pinned, 1<<20)
		var status *StatusError
		require.ErrorAs(t, err, &status, tt.body)
		assert.Equal(t, tt.message, status.Message, tt.body)
		assert.NotContains(t, err.Error(), "<nil>")
		assert.NotContains(t, err.Error(), "<html")

		err = c.PushManifest(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: pinned, Size: 1}, []byte("x"))
		assert.Error(t, err)
		assert.NotContains(t, err.Error(), "<nil>", "of the library's own errors")
		assert.NotContains(t, err.Error(), "<html")
	}
	assert.Empty(t, messageOf(errcode.Errors{}))
}

func TestAPageOfHTMLIsNoManifest(t *testing.T) {
	c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>please log in to the network"))
	}), true))
	_, err := c.Manifest(t.Context(), digest.FromString("x"), 1<<20)
	assert.ErrorContains(t, err, "with "+htmlMessage)
	assert.NotContains(t, err.Error(), "log in")
}

func TestBearerIn(t *testing.T) {
	for header, at := range map[string]int{
		`Bearer realm="x"`: 0, `bearer realm="x"`: 0, `Basic realm="x", Bearer realm="y"`: 17, `Basic realm="Bearer x"`: -1, `Basic realm="a\", Bearer b"`: -1,
		`Basic realm=x,BEARER realm=y`: 14, `Basic`: -1, ``: -1, `Bearer`: -1, `Negotiate,Bearer realm="y"`: 10, `Basic realm="notBearer ", Digest notBearer x`: -1, `Basic xBearer realm="y"`: -1,
	} {
		assert.Equal(t, at, bearerIn(header), header)
	}
}

// Registries such as Nexus offer Basic first, also to anonymous clients.
func TestBasicThenBearer(t *testing.T) {
	manifest := []byte(`{}`)
	for name, challenges := range map[string][]string{
		"two headers":         {`Basic realm="Registry"`, `Bearer realm="https://registry.example.com/token",service="r"`},
		"one header":          {`Basic realm="Registry", Bearer realm="https://registry.example.com/token",service="r"`},
		"Bearer first":        {`Bearer realm="https://registry.example.com/token",service="r"`, `Basic realm="Registry"`},
		"Bearer alone":        {`Bearer realm="https://registry.example.com/token",service="r"`},
		"one that is unknown": {`Negotiate`, `bearer realm="https://registry.example.com/token",service="r"`},
	} {
		for _, credential := range []auth.Credential{auth.EmptyCredential, {Username: "alice", Password: "secret"}} {
			transport := elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				user, _, hasBasic := r.BasicAuth()
				switch {
				case r.URL.Path == "/token":
					if hasBasic != (credential != auth.EmptyCredential) || user != credential.Username {
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					_ = json.NewEncoder(w).Encode(map[string]string{"token": "granted"})
				case r.Header.Get("Authorization") == "Bearer granted":
					_, _ = w.Write(manifest)
				default:
					w.Header()["Www-Authenticate"] = challenges
					w.WriteHeader(http.StatusUnauthorized)
				}
			}), true)
			c, err := New(Options{Reference: "registry.example.com/macos", Transport: transport, Clock: clock.RealClock{}, Wait: time.Millisecond, Stall: 5 * time.Second,
				Credential: auth.StaticCredential("registry.example.com", credential)})
			require.NoError(t, err)
			got, err := c.Manifest(t.Context(), digest.FromBytes(manifest), 1<<20)
			require.NoError(t, err, fmt.Sprint(name, credential.Username))
			assert.Equal(t, manifest, got)
		}
	}
}
