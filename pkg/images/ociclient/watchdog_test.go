package ociclient

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

const testStall = 400 * time.Millisecond

// stalling returns a client of a registry that stalls when told to.
func stalling(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	c, err := New(Options{Reference: "registry.example.com/macos/26:x", Transport: elsewhere(t, handler, true), Clock: clock.RealClock{}, Wait: time.Millisecond, Stall: testStall})
	require.NoError(t, err)
	return c
}

func blobOf(content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// uploads accepts uploads of blobs and manifests. put receives the requests with the content.
func uploads(put http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case http.MethodPost:
			w.Header().Set("Location", "/v2/upload?state=s3cret")
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPut:
			put(w, r)
		}
	}
}

func TestStalledPushIsRepeated(t *testing.T) {
	t.Parallel()
	content := make([]byte, 4<<20) // more than the connection buffers
	for name, taken := range map[string]int64{"at once": 0, "in the content": 1 << 20, "before the response": int64(len(content))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			push := func(push func(*Client) error) {
				var requests atomic.Int64
				repeated := make(chan struct{})
				require.NoError(t, push(stalling(t, uploads(func(w http.ResponseWriter, r *http.Request) {
					n := requests.Add(1)
					if n == 1 {
						_, _ = io.CopyN(io.Discard, r.Body, taken)
						select {
						case <-repeated:
						case <-time.After(20 * time.Second):
							t.Error("the request was not canceled")
						}
						return
					}
					if n == 2 {
						close(repeated)
					}
					received, err := io.Copy(io.Discard, r.Body)
					assert.NoError(t, err)
					assert.EqualValues(t, len(content), received)
					w.WriteHeader(http.StatusCreated)
				}))))
				assert.GreaterOrEqual(t, requests.Load(), int64(2))
			}
			push(func(c *Client) error { _, err := c.PushBlob(t.Context(), blobOf(content), content); return err })
			push(func(c *Client) error { return c.PushManifest(t.Context(), blobOf(content), content) })
		})
	}
}

func TestPushToARegistryThatStallsForever(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	c := stalling(t, uploads(func(http.ResponseWriter, *http.Request) { <-released }))
	defer close(released)
	_, err := c.PushBlob(t.Context(), blobOf(make([]byte, 10)), make([]byte, 10))
	require.ErrorContains(t, err, "6 attempts failed, the last with: registry registry.example.com has neither accepted data nor responded for 400ms")
	require.ErrorIs(t, err, errStalled)
}

// Slow transfers that make progress take longer than the watchdog allows for a stall.
func TestSlowTransfersAreNotStalled(t *testing.T) {
	t.Parallel()
	content := make([]byte, 4<<20)
	const steps = 16
	var requests atomic.Int64
	c := stalling(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Method == http.MethodPut {
			for range steps {
				time.Sleep(testStall / 8)
				_, _ = io.CopyN(io.Discard, r.Body, int64(len(content)/steps))
			}
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		for i := range steps {
			time.Sleep(testStall / 8)
			_, _ = w.Write(content[i*len(content)/steps : (i+1)*len(content)/steps])
		}
	})
	require.NoError(t, c.PushManifest(t.Context(), blobOf(content), content))
	got, err := io.ReadAll(c.Open(t.Context(), blobOf(content)))
	require.NoError(t, err)
	assert.Len(t, got, len(content))
	assert.EqualValues(t, 2, requests.Load(), "none was repeated")
}

// The registry is not at fault if the disk is slow.
func TestSlowReaderIsNoStall(t *testing.T) {
	t.Parallel()
	content := make([]byte, 16<<20)
	var requests atomic.Int64
	c := stalling(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
	})
	body := c.Open(t.Context(), blobOf(content))
	defer body.Close()
	for range 2 {
		_, err := io.ReadFull(body, make([]byte, len(content)/2))
		require.NoError(t, err)
		time.Sleep(2 * testStall)
	}
	assert.EqualValues(t, 1, requests.Load())
}
