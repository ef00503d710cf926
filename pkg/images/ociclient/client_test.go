package ociclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/auth"
)

func TestIsLoopback(t *testing.T) {
	for host, plain := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1": true, "127.9.9.9:80": true, "[::1]:5000": true, "::1": true,
		"registry.example.com": false, "10.0.0.1:5000": false, "localhost.example.com": false, "127.0.0.1.example.com": false, "0.0.0.0": false, "": false,
	} {
		assert.Equal(t, plain, isLoopback(host), host)
	}
}

// elsewhere is a registry with TLS at the name registry.example.com.
func elsewhere(t *testing.T, handler http.Handler, trusted bool) *http.Transport {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	if trusted {
		roots.AddCert(server.Certificate()) // which is for example.com and its subdomains
	}
	transport := newTransport(roots)
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	return transport
}

// A registry without TLS gets no data, and the error names the remedy.
func TestPlainHTTP(t *testing.T) {
	server := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	transport := newTransport(nil)
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	content := []byte("a chunk")
	blob := ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))}
	_, err := client(t, transport).PushBlob(t.Context(), blob, content)
	assert.ErrorContains(t, err, "registry registry.example.com has no TLS")
	assert.ErrorContains(t, err, "give the registry a certificate")
}

func client(t *testing.T, transport http.RoundTripper) *Client {
	t.Helper()
	c, err := New(Options{Reference: "registry.example.com/macos/26:xcode-26", Transport: transport, Clock: clock.RealClock{}, Wait: time.Millisecond, Stall: 5 * time.Second})
	require.NoError(t, err)
	return c
}

func TestTLS(t *testing.T) {
	content := []byte("a chunk")
	blob := ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))}
	handler := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	c := client(t, elsewhere(t, handler, true))
	for _, want := range []bool{true, false} {
		uploaded, err := c.PushBlob(t.Context(), blob, content)
		require.NoError(t, err)
		assert.Equal(t, want, uploaded)
	}
	got, err := c.Blob(t.Context(), blob, 100)
	require.NoError(t, err)
	assert.Equal(t, content, got)

	var requests atomic.Int64
	c = client(t, elsewhere(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }), false))
	_, err = c.Blob(t.Context(), blob, 100)
	var untrusted *tls.CertificateVerificationError
	require.ErrorAs(t, err, &untrusted)
	assert.ErrorContains(t, err, "registry registry.example.com: ")
	assert.NotContains(t, err.Error(), "attempts", "another attempt would not help")
	assert.Zero(t, requests.Load(), "no request to an unknown server")
}

// Redirects and token servers without TLS are refused.
func TestCredentialsAreNotSentWithoutTLS(t *testing.T) {
	blob := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	var asked atomic.Int64
	here := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer here.Close()
	redirect := func(target string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target+"/x?signature=s3cret", http.StatusTemporaryRedirect)
		}
	}
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		message string
	}{
		"redirect":              {redirect("http://cdn.example.com"), "by way of cdn.example.com: refused to connect to cdn.example.com without TLS"},
		"redirect to this host": {redirect(here.URL), "without TLS; only registries on this machine may omit TLS"},
		"tokens": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://tokens.example.com/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, "uses http but registry was contacted over https"},
	} {
		transport := elsewhere(t, tt.handler, true)
		secure := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasSuffix(address, ":443") {
				return secure(ctx, network, address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, here.Listener.Addr().String())
		}
		_, err := client(t, transport).Blob(t.Context(), blob, 100)
		require.ErrorContains(t, err, tt.message, name)
		assert.NotContains(t, err.Error(), "s3cret", "a signature is not shown")
	}

	// A registry on this machine may omit TLS, but not redirect to another machine without it.
	local := httptest.NewServer(redirect("http://cdn.example.com"))
	defer local.Close()
	c, err := New(Options{Reference: local.Listener.Addr().String() + "/macos/26", Clock: clock.RealClock{}, Wait: time.Millisecond})
	require.NoError(t, err)
	_, err = c.Blob(t.Context(), blob, 100)
	require.ErrorContains(t, err, "refused to connect to cdn.example.com without TLS")
	assert.Zero(t, asked.Load())
}

// Neither another host nor another port of the registry receives the credentials.
func TestCredentialsStayWithTheRegistry(t *testing.T) {
	blob := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	for _, target := range []string{"cdn.example.com", "registry.example.com:8443"} {
		var leaked atomic.Int64
		c, err := New(Options{Reference: "registry.example.com/macos/26", Clock: clock.RealClock{}, Wait: time.Millisecond,
			Credential: auth.StaticCredential("registry.example.com", auth.Credential{Username: "alice", Password: "secret"}),
			Transport: elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _, authorized := r.BasicAuth()
				switch {
				case r.Host == target:
					if authorized {
						leaked.Add(1)
					}
					_, _ = io.WriteString(w, "x")
				case authorized:
					http.Redirect(w, r, "https://"+target+"/x", http.StatusTemporaryRedirect)
				default:
					w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
					w.WriteHeader(http.StatusUnauthorized)
				}
			}), true)})
		require.NoError(t, err)
		got, err := c.Blob(t.Context(), blob, 100)
		require.NoError(t, err)
		assert.Equal(t, "x", string(got))
		assert.Zero(t, leaked.Load(), target)
	}
}

func TestRedirectsAreFollowedAndSignaturesNotShown(t *testing.T) {
	blob := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	var fail atomic.Bool
	c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			http.Redirect(w, r, "https://cdn.example.com/x?signature=s3cret", http.StatusTemporaryRedirect)
		case fail.Load():
			panic(http.ErrAbortHandler)
		default:
			_, _ = io.WriteString(w, "x")
		}
	}), true))
	got, err := c.Blob(t.Context(), blob, 100)
	require.NoError(t, err)
	assert.Equal(t, "x", string(got))
	fail.Store(true)
	_, err = c.Blob(t.Context(), blob, 100)
	require.ErrorContains(t, err, "by way of cdn.example.com")
	assert.NotContains(t, err.Error(), "s3cret")
}

func TestRetryAfterAsADate(t *testing.T) {
	blob := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	c := client(t, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	}), true))
	_, err := c.Blob(t.Context(), blob, 100)
	require.ErrorContains(t, err, "which exceeds the limit")
}

func TestMoreThanWasAskedFor(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"too long": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) },
		"without an end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					break
				}
			}
		},
	} {
		_, err := client(t, elsewhere(t, handler, true)).Manifest(t.Context(), digest.FromString("x"), 100)
		require.ErrorContains(t, err, "sends more than 100 bytes", name)
	}
	c := client(t, elsewhere(t, http.NotFoundHandler(), true))
	_, err := c.Blob(t.Context(), ocispec.Descriptor{Digest: digest.FromString("x"), Size: 101}, 100)
	require.ErrorContains(t, err, "and the limit is 100")
}
