package images

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/images/ociclient"
)

// The credentials are used but not stored.
func TestCredentials(t *testing.T) {
	const user, password = "robot", "correct horse battery staple"
	w := newWorld(t)
	basic := func(rw http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == password {
			return false
		}
		rw.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	bearer := func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
				rw.WriteHeader(http.StatusUnauthorized)
			} else {
				_, _ = io.WriteString(rw, `{"token":"a-secret-token"}`)
			}
			return true
		}
		if r.Header.Get("Authorization") == "Bearer a-secret-token" {
			return false
		}
		rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="images",scope="repository:macos/26:pull"`, w.server.URL))
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	secret := func(password string) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) {
			return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, w.host(), base64.StdEncoding.EncodeToString([]byte(user+":"+password))), nil
		}
	}
	logged := captureLog(t)
	for name, protect := range map[string]func(http.ResponseWriter, *http.Request) bool{"basic": basic, "bearer": bearer} {
		t.Run(name, func(t *testing.T) {
			w.store = w.newStore()
			w.setBefore(protect)
			for _, needs := range []Needs{{}, {Credentials: secret("wrong")}} {
				_, err := w.store.Ensure(t.Context(), w.image, needs)
				require.ErrorContains(t, err, "401 Unauthorized")
				require.ErrorContains(t, err, "see spec.pullSecretRef")
				assert.True(t, ociclient.IsUnauthorized(err))
				assert.NotContains(t, err.Error(), "wrong")
			}
			_, err := w.store.Ensure(t.Context(), w.image, Needs{Credentials: func(context.Context) ([]byte, error) { return []byte(password), nil }})
			require.ErrorContains(t, err, "not in the form of kubernetes.io/dockerconfigjson")
			assert.NotContains(t, err.Error(), password)
			_, err = w.store.Ensure(t.Context(), w.image, Needs{Credentials: func(context.Context) ([]byte, error) { return nil, errors.New("no Secret") }})
			require.ErrorContains(t, err, "no Secret")

			cached, err := w.store.Ensure(t.Context(), w.image, Needs{Credentials: secret(password)})
			require.NoError(t, err)
			w.check(cached)
			require.NoError(t, filepath.WalkDir(w.store.Dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				for _, word := range []string{password, base64.StdEncoding.EncodeToString([]byte(user + ":" + password)), "a-token-that"} {
					assert.NotContains(t, string(content), word, path)
				}
				return err
			}))
		})
	}
	assert.Contains(t, logged(), "Image pulled")
	for _, word := range []string{password, "wrong", "a-token-that", base64.StdEncoding.EncodeToString([]byte(user + ":"))[:8]} {
		assert.NotContains(t, logged(), word)
	}
}

// captureLog returns the logged text.
func captureLog(t *testing.T) func() string {
	var mu sync.Mutex
	var buf bytes.Buffer
	state := klog.CaptureState()
	klog.LogToStderr(false)
	klog.SetOutput(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}))
	t.Cleanup(func() {
		klog.Flush()
		klog.SetOutput(io.Discard)
		state.Restore()
	})
	return func() string {
		klog.Flush()
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
