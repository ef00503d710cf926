package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// cluster authenticates and authorizes: it knows the tokens "good", who may, and
// "other", who may not.
func cluster(t *testing.T) kubernetes.Interface {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if !assert.NoError(t, err) {
			return
		}
		switch review := obj.(type) {
		case *authenticationv1.TokenReview:
			review.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
			review.Status.Authenticated = review.Spec.Token == "good" || review.Spec.Token == "other"
			review.Status.User.Username = review.Spec.Token
		case *authorizationv1.SubjectAccessReview:
			review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
			attributes := review.Spec.ResourceAttributes
			review.Status.Allowed = review.Spec.User == "good" && attributes.Resource == "nodes" && attributes.Name == "mac-1" && attributes.Subresource == "proxy"
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(obj)
	}))
	t.Cleanup(api.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: api.URL})
}

// server is an agent's API.
func server(t *testing.T, dir string) string {
	client := cluster(t)
	n := New(Config{Description: Description{Name: "mac-1", Address: "127.0.0.1"}, Client: client, Clock: clock.RealClock{}, OnPod: func(*corev1.Pod) {}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- n.Serve(ctx, listener, ServerConfig{
			NodeName: "mac-1", Client: client, CertDir: dir,
			Logs: func(_ context.Context, namespace, pod string, options api.ContainerLogOpts) (io.ReadCloser, error) {
				if pod != "vm" {
					return nil, errdefs.AsNotFound(errNoPod)
				}
				return io.NopCloser(strings.NewReader("console of " + namespace)), nil
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return "https://" + listener.Addr().String()
}

func get(t *testing.T, url, token string) (int, string, *tls.ConnectionState) {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body), resp.TLS
}

func TestServer(t *testing.T) {
	url := server(t, t.TempDir())
	for _, test := range []struct {
		name, path, token string
		code              int
		body              string
	}{
		{"nobody", "/containerLogs/acme/vm/vm", "", http.StatusUnauthorized, "Unauthorized"},
		{"a stranger", "/containerLogs/acme/vm/vm", "bad", http.StatusUnauthorized, "Unauthorized"},
		{"one who may not", "/containerLogs/acme/vm/vm", "other", http.StatusForbidden, "Forbidden"},
		{"one who may", "/containerLogs/acme/vm/vm", "good", http.StatusOK, "console of acme"},
		{"no such pod", "/containerLogs/acme/none/vm", "good", http.StatusNotFound, "no such pod"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, body, _ := get(t, url+test.path, test.token)
			assert.Equal(t, test.code, code)
			assert.Contains(t, body, test.body)
		})
	}
}

func TestServingCertificateIsKept(t *testing.T) {
	dir := t.TempDir()
	_, _, first := get(t, server(t, dir)+"/pods", "")
	_, _, second := get(t, server(t, dir)+"/pods", "")
	assert.Equal(t, first.PeerCertificates[0].Raw, second.PeerCertificates[0].Raw)
	assert.Equal(t, "127.0.0.1", first.PeerCertificates[0].IPAddresses[0].String())
}
