package credentials

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

const testToken = "abcdef.0123456789abcdef"

// publisher is a server with cluster-info.
type publisher struct {
	server *httptest.Server
	ca     []byte
	date   time.Time
	status int
	// info is the published kubeconfig, signed with signer; second, if set, replaces it from the
	// second request on.
	info, second, signer string
	asked                int
	// body, if set, is the response.
	body string
}

func newPublisher(t *testing.T) *publisher {
	p := &publisher{status: http.StatusOK, signer: testToken, date: time.Now()}
	p.server = httptest.NewTLSServer(p)
	t.Cleanup(p.server.Close)
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	p.info = kubeconfigWith(t, p.ca)
	return p
}

func kubeconfigWith(t *testing.T, ca []byte) string {
	data, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: "https://elsewhere:6443", CertificateAuthorityData: ca}}})
	require.NoError(t, err)
	return string(data)
}

func (p *publisher) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Date", p.date.UTC().Format(http.TimeFormat))
	if req.URL.Path != "/api/v1/namespaces/kube-public/configmaps/cluster-info" || req.Header.Get("Authorization") != "" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	w.WriteHeader(p.status)
	if p.body != "" {
		fmt.Fprint(w, p.body)
		return
	}
	info := p.info
	if p.asked++; p.asked > 1 && p.second != "" {
		info = p.second
	}
	data := map[string]string{"kubeconfig": info}
	if p.signer != "" {
		id, secret, _ := strings.Cut(p.signer, ".")
		data["jws-kubeconfig-"+id], _ = jws.ComputeDetachedSignature(info, id, secret)
	}
	_ = json.NewEncoder(w).Encode(corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data,
	})
}

func (p *publisher) discovery(t *testing.T) *Discovery {
	token, err := ParseToken(testToken)
	require.NoError(t, err)
	return &Discovery{Server: p.server.URL, Token: token, CACertHashes: []string{Hash(p.server.Certificate())}, Clock: clock.RealClock{}}
}

func TestDiscover(t *testing.T) {
	p := newPublisher(t)
	config, err := p.discovery(t).Discover(t.Context())
	require.NoError(t, err)
	assert.Equal(t, p.server.URL, config.Host, "the address that was given, not the one in cluster-info")
	assert.Equal(t, p.ca, config.CAData)
	assert.Empty(t, config.BearerToken)
	assert.False(t, config.Insecure)

	// An authority without a matching hash is not trusted, even if it is signed with the token.
	other := newSigner(t)
	foreign := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.ca.Raw})
	p.info = kubeconfigWith(t, append(foreign, p.ca...))
	config, err = p.discovery(t).Discover(t.Context())
	require.NoError(t, err)
	assert.Equal(t, p.ca, config.CAData)

	d := p.discovery(t)
	d.CACertHashes, d.UnsafeSkipCAVerification = nil, true
	config, err = d.Discover(t.Context())
	require.NoError(t, err)
	assert.Equal(t, append(foreign, p.ca...), config.CAData)
}

func TestDiscoverRefuses(t *testing.T) {
	other := newSigner(t)
	foreign := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.ca.Raw})
	for _, tt := range []struct {
		name   string
		change func(*publisher, *Discovery)
		says   string
	}{
		{"no hash", func(_ *publisher, d *Discovery) { d.CACertHashes = nil }, "the hash of the cluster's CA is missing"},
		{"an invalid hash", func(_ *publisher, d *Discovery) { d.CACertHashes = []string{"sha256:abc"} }, `invalid CA hash "sha256:abc"; use the form sha256:<64`},
		{"a hash of another kind", func(_ *publisher, d *Discovery) { d.CACertHashes = []string{"sha1:" + strings.Repeat("0", 64)} }, "invalid CA hash"},
		{"the wrong hash", func(_ *publisher, d *Discovery) { d.CACertHashes = []string{"sha256:" + strings.Repeat("0", 64)} }, "has another hash"},
		{"the wrong hash, verification skipped", func(_ *publisher, d *Discovery) {
			d.CACertHashes, d.UnsafeSkipCAVerification = []string{"sha256:" + strings.Repeat("0", 64)}, true
		}, "has another hash"},
		{"another secret", func(p *publisher, _ *Discovery) { p.signer = "abcdef.0000000000000000" }, "is not signed with token abcdef; check the secret part of the token"},
		{"another secret, verification skipped", func(p *publisher, d *Discovery) {
			p.signer, d.UnsafeSkipCAVerification = "abcdef.0000000000000000", true
		}, "the secret part"},
		{"another token", func(p *publisher, _ *Discovery) { p.signer = "fedcba.0123456789abcdef" }, "does not know bootstrap token abcdef: it has expired, was deleted"},
		{"no token", func(p *publisher, _ *Discovery) { p.signer = "" }, "it has expired"},
		{"an authority that did not sign the server", func(p *publisher, d *Discovery) {
			p.info, d.CACertHashes = kubeconfigWith(t, foreign), []string{Hash(other.ca)}
		}, "is not from the token's cluster"},
		{"a proxy in between", func(p *publisher, _ *Discovery) { p.second = kubeconfigWith(t, append(foreign, p.ca...)) }, "differs over the verified connection"},
		{"no authority", func(p *publisher, _ *Discovery) { p.info = kubeconfigWith(t, nil) }, "has no certificate authority"},
		{"no cluster-info", func(p *publisher, _ *Discovery) { p.status = http.StatusNotFound }, "does not serve ConfigMap cluster-info"},
		{"hidden cluster-info", func(p *publisher, _ *Discovery) { p.status = http.StatusForbidden }, "to anonymous clients"},
		{"a server that is not ready", func(p *publisher, _ *Discovery) { p.status = http.StatusServiceUnavailable }, "check that it is kube-apiserver, and ready"},
		{"a web site", func(p *publisher, _ *Discovery) { p.body = "<html>" }, "is not that of kube-apiserver"},
		{"a clock that is behind", func(p *publisher, _ *Discovery) { p.date = p.date.Add(2 * time.Hour) }, "behind the server's"},
		{"a clock that is ahead", func(p *publisher, _ *Discovery) { p.date = p.date.Add(-2 * time.Hour) }, "ahead of the server's"},
		{"no TLS", func(_ *publisher, d *Discovery) { d.Server = "http://127.0.0.1:1" }, "use https://host:port"},
		{"no server", func(p *publisher, _ *Discovery) { p.server.Close() }, "is not reachable; check the address, the network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPublisher(t)
			d := p.discovery(t)
			// A wait advances the clock, so that the test does not wait for a signature that never
			// comes.
			d.Clock = &hasty{FakePassiveClock: clocktesting.NewFakePassiveClock(time.Now())}
			tt.change(p, d)
			_, err := d.Discover(t.Context())
			require.ErrorContains(t, err, tt.says)
			assert.NotContains(t, err.Error(), "0123456789abcdef", "an error shows the token")
		})
	}
}

// hasty is a clock whose waits end at once.
type hasty struct {
	clock.RealClock
	*clocktesting.FakePassiveClock
}

func (h *hasty) Now() time.Time                  { return h.FakePassiveClock.Now() }
func (h *hasty) Since(t time.Time) time.Duration { return h.FakePassiveClock.Since(t) }
func (h *hasty) After(d time.Duration) <-chan time.Time {
	h.SetTime(h.Now().Add(d))
	c := make(chan time.Time, 1)
	c <- h.Now()
	return c
}

func TestDiscoveryWaitsForTheSignature(t *testing.T) {
	p := newPublisher(t)
	p.signer = ""
	d := p.discovery(t)
	waited := 0
	d.Clock = &patient{hasty: hasty{FakePassiveClock: clocktesting.NewFakePassiveClock(time.Now())}, on: func() {
		if waited++; waited == 3 {
			p.signer = testToken
		}
	}}
	_, err := d.Discover(context.Background())
	require.NoError(t, err)
	assert.Equal(t, 3, waited)
}

type patient struct {
	hasty
	on func()
}

func (p *patient) After(d time.Duration) <-chan time.Time {
	p.on()
	return p.hasty.After(d)
}

func TestTokensAreNotPrinted(t *testing.T) {
	token, err := ParseToken(" " + testToken + "\n")
	require.NoError(t, err)
	assert.Equal(t, testToken, token.Bearer())
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v %s", token, token, token, token), "0123456789abcdef")
	for _, bad := range []string{"", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "secret-thing"} {
		_, err := ParseToken(bad)
		require.EqualError(t, err, "the token is not of the form abcdef.0123456789abcdef (6 and 16 characters, a-z and 0-9)")
	}
}

func TestCreateToken(t *testing.T) {
	client := kubefake.NewClientset()
	expires := time.Date(2026, 8, 1, 12, 0, 0, 0, time.FixedZone("CEST", 7200))
	token, err := CreateToken(t.Context(), client, "mac-1.ber", expires)
	require.NoError(t, err)
	secret, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+token.ID, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, corev1.SecretTypeBootstrapToken, secret.Type)
	assert.Equal(t, map[string]string{
		"token-id": token.ID, "token-secret": token.secret, "expiration": "2026-08-01T10:00:00Z",
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": "system:bootstrappers:macrack,system:bootstrappers:macrack:mac-1:ber", "description": "for Mac mac-1.ber to join",
	}, secret.StringData)
	_, err = CreateToken(t.Context(), client, "Mac_1", expires)
	assert.ErrorContains(t, err, "invalid Mac name")
}

func TestHashes(t *testing.T) {
	s := newSigner(t)
	hashes, err := Hashes(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Raw})}})
	require.NoError(t, err)
	assert.Equal(t, []string{Hash(s.ca)}, hashes)
	_, err = Hashes(&rest.Config{})
	assert.Error(t, err)
}
