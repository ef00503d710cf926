package ociclient

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A redirect is followed again when a transfer resumes, because its signature may have expired.
func TestResume(t *testing.T) {
	var content string
	for i := range 1000 {
		content += fmt.Sprintf("%05d", i)
	}
	for _, ranges := range []bool{true, false} {
		var requests []string // one at a time
		c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests = append(requests, r.Host+" "+r.Header.Get("Range"))
			switch {
			case r.Host == "registry.example.com":
				http.Redirect(w, r, "https://cdn.example.com/x?signature=s3cret", http.StatusTemporaryRedirect)
			case r.Header.Get("Range") == "":
				w.Header().Set("Content-Length", fmt.Sprint(len(content)))
				_, _ = io.WriteString(w, content[:1000])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			case ranges:
				w.WriteHeader(http.StatusPartialContent)
				_, _ = io.WriteString(w, content[1000:])
			default:
				_, _ = io.WriteString(w, content)
			}
		}), true))
		got, err := io.ReadAll(c.Open(t.Context(), blobOf([]byte(content))))
		require.NoError(t, err)
		assert.Equal(t, content, string(got))
		const rest = "bytes=1000-4999"
		assert.Equal(t, []string{"registry.example.com ", "cdn.example.com ", "registry.example.com " + rest, "cdn.example.com " + rest}, requests)
	}
}

// A registry, or a proxy before it, may send neither a length nor a type, and refuse HEAD.
func TestManifestWithoutLengthAndType(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	var requests []string
	c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.Header.Get("Accept"))
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header()["Content-Type"] = nil
		w.(http.Flusher).Flush() // makes the response chunked
		_, _ = w.Write(manifest)
	}), true))
	got, err := c.Manifest(t.Context(), digest.FromBytes(manifest), 1<<20)
	require.NoError(t, err)
	assert.Equal(t, manifest, got)
	assert.Equal(t, []string{"GET application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"}, requests)
}

// Responses such as 204 No Content have no content to verify.
func TestResponsesWithoutContent(t *testing.T) {
	for _, code := range []int{http.StatusNoContent, http.StatusPartialContent} {
		requests := 0
		c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests++
			w.WriteHeader(code)
		}), true))
		_, err := c.Manifest(t.Context(), digest.FromString("x"), 1<<20)
		var status *StatusError
		require.ErrorAs(t, err, &status)
		assert.Equal(t, code, status.Code)
		assert.Equal(t, 1, requests, "not repeated")
	}
}

// The manifest has the size of each blob. Another attempt would not change the content.
func TestSizesThatDoNotMatch(t *testing.T) {
	blob := blobOf([]byte("content"))
	for content, sizes := range map[string]string{"too much content": "sends 16 bytes for ", "short": "sends 5 bytes for "} {
		requests := 0
		c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host == "registry.example.com" {
				http.Redirect(w, r, "https://cdn.example.com/x?signature=s3cret", http.StatusTemporaryRedirect)
				return
			}
			requests++
			_, _ = io.WriteString(w, content)
		}), true))
		_, inMemory := c.Blob(t.Context(), blob, 100)
		_, streamed := io.ReadAll(c.Open(t.Context(), blob))
		for _, err := range []error{inMemory, streamed} {
			require.ErrorContains(t, err, "registry registry.example.com "+sizes+blob.Digest.String()+", and the manifest has 7; ")
			assert.NotContains(t, err.Error(), "attempts")
			assert.NotContains(t, err.Error(), "s3cret")
		}
		assert.Equal(t, 2, requests, "none was repeated")
	}
}
