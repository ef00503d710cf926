package images

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRegistryFails(t *testing.T) {
	short := func(rw http.ResponseWriter, r *http.Request, w *world, n int) { // the first n bytes, and then the connection breaks
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		for name, values := range recorder.Header() {
			rw.Header()[name] = values
		}
		rw.WriteHeader(recorder.Code)
		_, _ = rw.Write(recorder.Body.Bytes()[:min(n, recorder.Body.Len())])
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	flip := func(rw http.ResponseWriter, r *http.Request, w *world) {
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		body := recorder.Body.Bytes()
		body[len(body)/2] ^= 1
		rw.Header().Set("Content-Length", fmt.Sprint(len(body)))
		rw.WriteHeader(recorder.Code)
		_, _ = rw.Write(body)
	}
	hang := func(r *http.Request) { <-r.Context().Done() }
	status := func(rw http.ResponseWriter, code int) bool {
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, `{"errors":[{"code":"TOOMANYREQUESTS","message":"not\nnow"}]}`)
		return true
	}
	for name, tc := range map[string]struct {
		fault func(w *world) func(rw http.ResponseWriter, r *http.Request, n int) bool
		fails []string // what the error says; empty: it gets over it
	}{
		"a break in each": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Header.Get("Range") == "" {
					short(rw, r, w, 1000)
				}
				return false
			}
		}},
		"a break, and no ranges": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, n int) bool {
				r.Header.Del("Range")
				if n <= 3 {
					short(rw, r, w, 1000)
				}
				return false
			}
		}},
		"breaks for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool { short(rw, r, w, 0); return true }
		}, fails: []string{"6 attempts failed, the last with: registry 127.0.0.1", "EOF"}},
		"damage once": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, n int) bool {
				if n == 2 {
					flip(rw, r, w)
				}
				return n == 2
			}
		}},
		"damage for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool { flip(rw, r, w); return true }
		}, fails: []string{"arrived corrupt 3 times"}},
		"a hang": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(_ http.ResponseWriter, r *http.Request, n int) bool {
				if n == 1 {
					hang(r)
				}
				return n == 1
			}
		}},
		"a hang in the middle, for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Header.Get("Range") == "" {
					recorder := httptest.NewRecorder()
					w.registry.ServeHTTP(recorder, r)
					rw.Header().Set("Content-Length", fmt.Sprint(recorder.Body.Len()))
					_, _ = rw.Write(recorder.Body.Bytes()[:10])
					rw.(http.Flusher).Flush()
				}
				hang(r)
				return true
			}
		}, fails: []string{"has sent nothing for 200ms"}},
		"500 now and then": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, n int) bool {
				return n%2 == 1 && n < 12 && status(rw, http.StatusInternalServerError)
			}
		}},
		"500 for ever": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool {
				return status(rw, http.StatusServiceUnavailable)
			}
		}, fails: []string{"6 attempts failed", "responds with 503 Service Unavailable", "not now"}},
		"429 with a wait that is too long": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool {
				rw.Header().Set("Retry-After", "3600")
				return status(rw, http.StatusTooManyRequests)
			}
		}, fails: []string{"requests a wait of 1h0m0s", "429"}},
		"gone": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool { return status(rw, http.StatusNotFound) }
		}, fails: []string{"responds with 404", "was never pushed to the repository, or was deleted"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.store.stall = 200 * time.Millisecond
			w.interfere(tc.fault(w))
			cached, err := w.ensure()
			if len(tc.fails) == 0 {
				require.NoError(t, err)
				w.check(cached)
				return
			}
			require.Error(t, err)
			for _, text := range tc.fails {
				assert.ErrorContains(t, err, text)
			}
			list, err := w.store.List()
			require.NoError(t, err)
			assert.Empty(t, list)
			// Once the registry works again, the pull succeeds.
			w.setBefore(nil)
			cached, err = w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}

func TestBrokenTransferIsResumed(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	w.interfere(func(rw http.ResponseWriter, r *http.Request, n int) bool {
		if n != 1 {
			return false
		}
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		rw.Header().Set("Content-Length", fmt.Sprint(recorder.Body.Len()))
		_, _ = rw.Write(recorder.Body.Bytes()[:5000])
		panic(http.ErrAbortHandler)
	})
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.True(t, slices.ContainsFunc(w.requests(), func(r string) bool { return strings.Contains(r, " bytes=5000-") }), "the transfer resumes where it broke off: %v", w.requests())
}

// Only the size in the manifest shows that these transfers are incomplete. The received data is not
// damaged, so the chunk is not fetched again from its beginning.
func TestShortTransfersThatEndCleanly(t *testing.T) {
	w := newWorld(t)
	w.interfere(func(rw http.ResponseWriter, r *http.Request, _ int) bool {
		r.Header.Del("Range")
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		rw.(http.Flusher).Flush() // before the length is known
		_, _ = rw.Write(recorder.Body.Bytes()[:10])
		return true
	})
	_, err := w.ensure()
	require.ErrorContains(t, err, "6 attempts failed, the last with: registry "+w.host()+" interrupted the transfer after 10 of ")
	assert.NotContains(t, err.Error(), "corrupt")
	w.setBefore(nil)
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

func TestRetryAfterIsKept(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	var refused time.Time
	var waited time.Duration
	w.interfere(func(rw http.ResponseWriter, _ *http.Request, n int) bool {
		switch n {
		case 1:
			refused = time.Now()
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(http.StatusTooManyRequests)
			return true
		case 2:
			waited = time.Since(refused)
		}
		return false
	})
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.GreaterOrEqual(t, waited, time.Second)
}

// A push repeats the upload that the registry does not respond to.
func TestStalledPush(t *testing.T) {
	w := newWorld(t)
	var puts atomic.Int64
	repeated := make(chan struct{})
	w.setBefore(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		switch puts.Add(1) {
		case 1:
			<-repeated
			return true
		case 2:
			close(repeated)
		}
		return false
	})
	w.disk = bytes.Repeat([]byte("macOS"), testChunk/5)
	w.stall = 500 * time.Millisecond
	w.image.Digest = w.push("macos/26:stalled", w.disk).Digest.String()
	w.setBefore(nil)
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}
