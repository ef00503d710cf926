package ociclient

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func blobOf(content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// roundTrips is a registry without a network, for tests in a bubble of synctest.
type roundTrips func(r *http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func bubbleClient(t *testing.T, registry roundTrips) *Client {
	t.Helper()
	c, err := New(Options{Reference: "registry.example.com/macos/26:x", Transport: registry, Clock: clock.RealClock{}})
	require.NoError(t, err)
	return c
}

func answer(r *http.Request, code int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(body), ContentLength: -1, Request: r}
}

// slow is content that arrives in pieces, one each interval.
type slow struct {
	content  io.Reader
	interval time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(s.interval)
	return s.content.Read(p[:min(len(p), 10)])
}

func TestStalledPushIsRepeated(t *testing.T) {
	content := make([]byte, 1000)
	for name, tt := range map[string]struct {
		taken int64
		limit time.Duration
	}{
		"at once":             {0, 30 * time.Second},
		"in the content":      {500, 30 * time.Second},
		"before the response": {1001, 10 * time.Minute}, // the end is read, too
	} {
		for _, push := range []func(context.Context, *Client) error{
			func(ctx context.Context, c *Client) error {
				_, err := c.PushBlob(ctx, blobOf(content), content)
				return err
			},
			func(ctx context.Context, c *Client) error { return c.PushManifest(ctx, blobOf(content), content) },
		} {
			synctest.Test(t, func(t *testing.T) {
				puts := 0
				began := time.Now()
				require.NoError(t, push(t.Context(), bubbleClient(t, func(r *http.Request) (*http.Response, error) {
					switch r.Method {
					case http.MethodHead:
						return answer(r, http.StatusNotFound, http.NoBody), nil
					case http.MethodPost:
						resp := answer(r, http.StatusAccepted, http.NoBody)
						resp.Header.Set("Location", "/v2/upload?state=s3cret")
						return resp, nil
					}
					if puts++; puts == 1 {
						_, _ = io.CopyN(io.Discard, r.Body, tt.taken)
						<-r.Context().Done()
						return nil, r.Context().Err()
					}
					received, err := io.ReadAll(r.Body)
					assert.Len(t, received, len(content))
					return answer(r, http.StatusCreated, http.NoBody), err
				})), name)
				assert.Equal(t, 2, puts, name)
				assert.InDelta(t, tt.limit.Seconds(), time.Since(began).Seconds(), 1, name)
			})
		}
	}
}

func TestPushToARegistryThatStallsForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bubbleClient(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		err := c.PushManifest(t.Context(), blobOf(make([]byte, 10)), make([]byte, 10))
		require.ErrorContains(t, err, "6 attempts failed, the last with: registry registry.example.com has neither accepted data nor responded for 30s")
		require.ErrorIs(t, err, errStalled)
	})
}

// A proxy may accept all content before it forwards any.
func TestSlowResponseToAPush(t *testing.T) {
	for wait, failure := range map[time.Duration]string{
		9 * time.Minute:  "",
		11 * time.Minute: "6 attempts failed, the last with: registry registry.example.com has accepted all data but not responded for 10m0s: stalled",
	} {
		synctest.Test(t, func(t *testing.T) {
			content := make([]byte, 1000)
			requests := 0
			err := bubbleClient(t, func(r *http.Request) (*http.Response, error) {
				requests++
				received, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				assert.Len(t, received, len(content))
				select {
				case <-r.Context().Done():
					return nil, r.Context().Err()
				case <-time.After(wait):
					return answer(r, http.StatusCreated, http.NoBody), nil
				}
			}).PushManifest(t.Context(), blobOf(content), content)
			if failure == "" {
				require.NoError(t, err)
				assert.Equal(t, 1, requests, "not repeated")
				return
			}
			require.EqualError(t, err, failure)
		})
	}
}

// The transport reads the content to its end, which starts the wait for the response.
func TestSlowResponseOverTheNetwork(t *testing.T) {
	content := []byte("manifest")
	transport := elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(time.Second)
		w.WriteHeader(http.StatusCreated)
	}), true)
	c, err := New(Options{Reference: "registry.example.com/macos/26:x", Transport: transport, Clock: clock.RealClock{}, Wait: time.Millisecond, Stall: 400 * time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, c.PushManifest(t.Context(), blobOf(content), content))
}

// Slow transfers that make progress take longer than the watchdog allows for a stall.
func TestSlowTransfersAreNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := make([]byte, 100)
		requests := 0
		c := bubbleClient(t, func(r *http.Request) (*http.Response, error) {
			requests++
			if r.Method == http.MethodGet {
				return answer(r, http.StatusOK, slow{untilCanceled{bytes.NewReader(content), r}, 29 * time.Second}), nil
			}
			received, err := io.ReadAll(slow{r.Body, 29 * time.Second})
			if err == nil {
				err = context.Cause(r.Context())
			}
			assert.Len(t, received, len(content))
			return answer(r, http.StatusCreated, http.NoBody), err
		})
		require.NoError(t, c.PushManifest(t.Context(), blobOf(content), content))
		got, err := io.ReadAll(c.Open(t.Context(), blobOf(content)))
		require.NoError(t, err)
		assert.Len(t, got, len(content))
		assert.Equal(t, 2, requests, "none was repeated")
	})
}

// untilCanceled fails when the request is canceled, as the body of a real response does.
type untilCanceled struct {
	io.Reader
	r *http.Request
}

func (u untilCanceled) Read(p []byte) (int, error) {
	if err := u.r.Context().Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(p)
}

// The registry is not at fault if the disk is slow.
func TestSlowReaderIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := make([]byte, 100)
		requests := 0
		c := bubbleClient(t, func(r *http.Request) (*http.Response, error) {
			requests++
			return answer(r, http.StatusOK, untilCanceled{bytes.NewReader(content), r}), nil
		})
		body := c.Open(t.Context(), blobOf(content))
		defer body.Close()
		for range 2 {
			_, err := io.ReadFull(body, make([]byte, 50))
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		assert.Equal(t, 1, requests)
	})
}
