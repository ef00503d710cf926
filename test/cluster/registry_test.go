package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A registry that starts again has an index, although the file of the index is read before those of
// its manifests.
func TestRestoreManifests(t *testing.T) {
	dir := t.TempDir()
	const image = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}`
	imageDigest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(image)))
	index, indexDigest := "", ""
	for n := 0; indexDigest == "" || indexDigest > imageDigest; n++ {
		index = fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","annotations":{"n":"%d"},"manifests":[`+
			`{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":%d,"digest":%q}]}`, n, len(image), imageDigest)
		indexDigest = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(index)))
	}
	serve(t, dir, func(server string) {
		put(t, server+imageDigest, "application/vnd.oci.image.manifest.v1+json", image)
		put(t, server+indexDigest, "application/vnd.oci.image.index.v1+json", index)
	})
	serve(t, dir, func(server string) {
		resp, err := http.Get(server + indexDigest)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, index, string(body))
	})
}

// serve serves a registry while use runs with the URL of its manifests.
func serve(t *testing.T, dir string, use func(server string)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeRegistry(ctx, l, dir) }()
	use("http://" + l.Addr().String() + "/v2/macos/manifests/")
	cancel()
	require.NoError(t, <-served)
}

func put(t *testing.T, url, mediaType, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusCreated, resp.StatusCode)
}
