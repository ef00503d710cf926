package node

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// reviewer is a kube-apiserver that knows two tokens, and lets one of their users scrape mac-1.
type reviewer struct {
	kubernetes.Interface
	mu             sync.Mutex
	tokens, access int
	down           bool
}

func newReviewer(t *testing.T) *reviewer {
	r := &reviewer{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		respond(t, w, req, &review, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tokens++
			if name := review.Spec.Token; name == "prometheus" || name == "tenant" {
				review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name, Groups: []string{"group-of-" + name}}}
			}
		})
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.access++
		if r.down {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var review authorizationv1.SubjectAccessReview
		respond(t, w, req, &review, func() {
			a := *review.Spec.ResourceAttributes
			review.Status.Allowed = review.Spec.User == "prometheus" && review.Spec.Groups[0] == "group-of-prometheus" &&
				a == authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "metrics", Name: "mac-1"}
		})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	var err error
	r.Interface, err = kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	return r
}

// respond answers a review in JSON after f has changed it.
func respond(t *testing.T, w http.ResponseWriter, req *http.Request, review any, f func()) {
	assert.NoError(t, json.NewDecoder(req.Body).Decode(review))
	f()
	w.Header().Set("Content-Type", "application/json")
	assert.NoError(t, json.NewEncoder(w).Encode(review))
}

func (r *reviewer) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func scrape(t *testing.T, url, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestMetricsAreServedToPermittedClients(t *testing.T) {
	ca, reviewer := newAuthority(t), newReviewer(t)
	address := serveWith(t, reviewer, ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir(), Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "macrack_agent_images 1\n")
	})})
	for _, tt := range []struct {
		name, path, token string
		code              int
		body              string
	}{
		{"no token", "/metrics", "", http.StatusUnauthorized, "a bearer token is required"},
		{"an unknown token", "/metrics", "forged", http.StatusUnauthorized, "the bearer token is not valid"},
		{"a tenant", "/metrics", "tenant", http.StatusForbidden, "user tenant may not get nodes/metrics of mac-1"},
		{"Prometheus", "/metrics", "prometheus", http.StatusOK, "macrack_agent_images 1"},
		{"pods", "/pods", "prometheus", http.StatusUnauthorized, "only kube-apiserver is served here"},
		{"a console", "/containerLogs/acme/vm/vm", "prometheus", http.StatusUnauthorized, "only kube-apiserver is served here"},
		{"below", "/metrics/cadvisor", "prometheus", http.StatusUnauthorized, "only kube-apiserver is served here"},
	} {
		code, body := scrape(t, address+tt.path, tt.token)
		assert.Equal(t, tt.code, code, tt.name)
		assert.Contains(t, body, tt.body, tt.name)
	}
	// The user of the API server proxy is authorized by kube-apiserver.
	code, body, _, err := get(address+"/metrics", ca.sign(kubeAPIServer))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "macrack_agent_images 1\n", body)

	tokens, access := reviewer.tokens, reviewer.access
	reviewer.setDown(true)
	code, _ = scrape(t, address+"/metrics", "prometheus")
	assert.Equal(t, http.StatusOK, code, "the permission is remembered")
	assert.Equal(t, []int{tokens, access}, []int{reviewer.tokens, reviewer.access})
	code, _ = scrape(t, address+"/metrics", "tenant")
	assert.Equal(t, http.StatusServiceUnavailable, code, "a refusal is not remembered")
}

// Forged tokens must not use up the agent's requests to kube-apiserver.
func TestScrapesAreLimited(t *testing.T) {
	ca, reviewer := newAuthority(t), newReviewer(t)
	address := serveWith(t, reviewer, ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir(), Metrics: http.NotFoundHandler()})
	refused := 0
	for range 2 * reviewBurst {
		if code, _ := scrape(t, address+"/metrics", "forged"); code == http.StatusTooManyRequests {
			refused++
		}
	}
	assert.Positive(t, refused)
}

func TestMetricsAreNotWritten(t *testing.T) {
	ca := newAuthority(t)
	address := serveWith(t, newReviewer(t), ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir(), Metrics: http.NotFoundHandler()})
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Post(address+"/metrics", "", nil)
	require.NoError(t, err)
	defer response.Body.Close()
	assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
}
