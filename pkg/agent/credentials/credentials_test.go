package credentials

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// signer is a cluster that signs the requests of bootstrap tokens and nodes.
type signer struct {
	t      *testing.T
	server *httptest.Server
	key    *ecdsa.PrivateKey
	ca     *x509.Certificate

	mu       sync.Mutex
	requests []*certificatesv1.CertificateSigningRequest
	// askers are the requesters: "token" or the common name of a certificate.
	askers []string
	// age and life are the past and the remaining validity of certificates.
	age, life time.Duration
	// denial, if set, is the reason of denials; refusal is the status of requests that are rejected
	// outright.
	denial  *certificatesv1.CertificateSigningRequestCondition
	refusal int
	// noRenewals refuses requesters with a certificate.
	noRenewals bool
	// shown are the serial numbers of the client certificates that were presented to /version.
	shown []string
}

var reasons = map[int]metav1.StatusReason{http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden}

func newSigner(t *testing.T) *signer {
	s := &signer{t: t, age: time.Minute, life: time.Hour}
	var err error
	s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &s.key.PublicKey, s.key)
	require.NoError(t, err)
	s.ca, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	s.server = httptest.NewUnstartedServer(s)
	s.server.StartTLS()
	s.server.TLS.ClientAuth = 1 // tls.RequestClientCert
	t.Cleanup(s.server.Close)
	return s
}

func (s *signer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case req.URL.Path == "/version":
		s.shown = append(s.shown, req.TLS.PeerCertificates[0].SerialNumber.String())
		_, _ = io.WriteString(w, "{}")
	case req.Method == http.MethodPost && s.noRenewals && len(req.TLS.PeerCertificates) > 0:
		w.WriteHeader(http.StatusServiceUnavailable)
	case req.Method == http.MethodPost && s.refusal != 0:
		w.WriteHeader(s.refusal)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(s.refusal), Reason: reasons[s.refusal]})
	case req.Method == http.MethodPost && req.URL.Path == path:
		body, err := io.ReadAll(req.Body)
		assert.NoError(s.t, err)
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if !assert.NoError(s.t, err) {
			return
		}
		csr := obj.(*certificatesv1.CertificateSigningRequest)
		asker := "nobody"
		if req.Header.Get("Authorization") == "Bearer abcdef.0123456789abcdef" {
			asker = "token"
		} else if len(req.TLS.PeerCertificates) > 0 {
			asker = req.TLS.PeerCertificates[0].Subject.CommonName
		}
		s.askers = append(s.askers, asker)
		if csr.Name == "" {
			csr.Name = "csr-" + string(rune('a'+len(s.requests)))
		}
		csr.UID = "uid"
		csr.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		if s.denial != nil {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{*s.denial}
		} else {
			csr.Status.Certificate = s.sign(csr.Spec.Request)
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		}
		s.requests = append(s.requests, csr)
		_ = json.NewEncoder(w).Encode(csr)
	case req.Method == http.MethodGet && strings.HasPrefix(req.URL.Path, path+"/"):
		for _, csr := range s.requests {
			if csr.Name == strings.TrimPrefix(req.URL.Path, path+"/") {
				_ = json.NewEncoder(w).Encode(csr)
			}
		}
	case req.Method == http.MethodGet && req.URL.Query().Get("watch") == "":
		list := &certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequestList"}}
		list.ResourceVersion = "1"
		for _, csr := range s.requests {
			if req.URL.Query().Get("fieldSelector") == "metadata.name="+csr.Name {
				list.Items = append(list.Items, *csr)
			}
		}
		_ = json.NewEncoder(w).Encode(list)
	}
}

func (s *signer) sign(request []byte) []byte {
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(s.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: csr.Subject,
		NotBefore: time.Now().Add(-s.age), NotAfter: time.Now().Add(s.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
	}, s.ca, csr.PublicKey, s.key)
	require.NoError(s.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (s *signer) bootstrapKubeconfig() string {
	path := filepath.Join(s.t.TempDir(), "bootstrap")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	require.NoError(s.t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: s.server.URL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "abcdef.0123456789abcdef"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path))
	return path
}

func options(t *testing.T, s *signer) Options {
	dir := t.TempDir()
	return Options{
		NodeName: "mac-1", Kubeconfig: filepath.Join(dir, "kubeconfig"), BootstrapKubeconfig: s.bootstrapKubeconfig(), CertDir: filepath.Join(dir, "pki"),
	}
}

func join(t *testing.T, o Options) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	config, err := Join(ctx, o)
	if err != nil {
		return err
	}
	assert.Empty(t, config.BearerToken, "the token is for joining only")
	store, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	cert := store.Valid("mac-1")
	require.NotNil(t, cert)
	assert.Equal(t, "system:node:mac-1", cert.Subject.CommonName)
	assert.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	return nil
}

func TestJoinOnceAndForAll(t *testing.T) {
	s := newSigner(t)
	o := options(t, s)
	require.NoError(t, join(t, o))
	require.Len(t, s.requests, 1)
	assert.Equal(t, []string{"token"}, s.askers)
	assert.Equal(t, certificatesv1.KubeAPIServerClientKubeletSignerName, s.requests[0].Spec.SignerName)
	assert.ElementsMatch(t, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, s.requests[0].Spec.Usages)

	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	require.NoError(t, err)
	assert.Equal(t, s.server.URL, config.Host)
	assert.Empty(t, config.BearerToken)
	pair, err := os.ReadFile(config.CertFile)
	require.NoError(t, err)
	assert.Contains(t, string(pair), "PRIVATE KEY")
	assert.NoFileExists(t, filepath.Join(o.CertDir, pendingKey))
	info, err := os.Stat(o.Kubeconfig)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// The agent restarts without token and signer.
	o.BootstrapKubeconfig = ""
	s.server.Close()
	require.NoError(t, join(t, o))
	assert.Len(t, s.requests, 1)
}

func TestExpiredCertificateJoinsAgain(t *testing.T) {
	s := newSigner(t)
	s.life = -time.Second
	o := options(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := Join(ctx, o)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a certificate that has expired is none")
	s.mu.Lock()
	s.life = time.Hour
	s.mu.Unlock()
	require.NoError(t, join(t, o))
	assert.Equal(t, "token", s.askers[len(s.askers)-1])
}

// An agent whose certificate has expired uses the new one from `macrack-agent join`.
func TestAgentUsesCertificateOfJoin(t *testing.T) {
	s := newSigner(t)
	o := options(t, s)
	server, err := o.server()
	require.NoError(t, err)
	token, err := o.bootstrapClient()
	require.NoError(t, err)
	running, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	s.life = -time.Second
	require.Error(t, running.Request(t.Context(), token, o.NodeName), "it has expired")
	config, err := running.follow(server)
	require.NoError(t, err)
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	resp, err := http.Get(config.Host + "/version") // a connection that shows the expired certificate, and stays
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()

	agent := o
	agent.BootstrapKubeconfig = ""
	_, err = agent.renewalClient(running, config, nil)
	require.ErrorContains(t, err, "run `macrack-agent join`")

	s.life = time.Hour
	joining, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	require.NoError(t, joining.Request(t.Context(), token, o.NodeName))

	client, err := agent.renewalClient(running, config, nil)
	require.NoError(t, err)
	require.NotNil(t, running.Valid(o.NodeName))
	_, err = client.Discovery().ServerVersion()
	require.NoError(t, err)
	assert.Equal(t, serial(t, o), s.shown[len(s.shown)-1], "the expired certificate is shown on")
	assert.NotEqual(t, s.shown[0], s.shown[len(s.shown)-1])

	// A certificate of another Node does not count.
	assert.False(t, running.reread("mac-2"))
	// It does not wait for an expired token either.
	s.refusal = 401
	waiting, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	waiting.current.Store(nil)
	require.NoError(t, o.bootstrap(t.Context(), waiting))
}

func TestJoinWithoutAnything(t *testing.T) {
	dir := t.TempDir()
	_, err := Join(context.Background(), Options{NodeName: "mac-1", Kubeconfig: filepath.Join(dir, "kubeconfig"), CertDir: dir})
	require.ErrorContains(t, err, "this Mac has not joined a cluster")
	require.ErrorContains(t, err, "macrack-agent join")
}

func TestRotation(t *testing.T) {
	s := newSigner(t)
	s.age, s.life = time.Hour, time.Minute // most of its life has passed, so it is to be rotated at once
	s.noRenewals = true
	o := options(t, s)
	config, err := Join(t.Context(), o)
	require.NoError(t, err)
	first := serial(t, o)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	resp, err := client.Get(config.Host + "/version") // a connection that shows the first certificate, and stays
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	s.mu.Lock()
	require.Equal(t, []string{first}, s.shown)
	s.noRenewals, s.age, s.life = false, time.Minute, time.Hour
	s.mu.Unlock()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		resp, err := client.Get(config.Host + "/version")
		if !assert.NoError(c, err) {
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		assert.NotEqual(c, first, s.shown[len(s.shown)-1], "the client continues with the old certificate")
	}, time.Minute, 50*time.Millisecond)
	assert.Equal(t, serial(t, o), s.shown[len(s.shown)-1])
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Equal(t, "token", s.askers[0])
	assert.Equal(t, "system:node:mac-1", s.askers[len(s.askers)-1], "an agent renews as itself")
}

func serial(t *testing.T, o Options) string {
	cert, node, err := Read(o.CertDir)
	require.NoError(t, err)
	assert.Equal(t, "mac-1", node)
	return cert.SerialNumber.String()
}

func TestRefusals(t *testing.T) {
	s := newSigner(t)
	o := options(t, s)
	client, err := o.bootstrapClient()
	require.NoError(t, err)
	store, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	pending := filepath.Join(o.CertDir, pendingKey)

	s.refusal = http.StatusUnauthorized
	require.ErrorContains(t, store.Request(t.Context(), client, "mac-1"), "has expired or was deleted; create a new one")
	kept, err := os.ReadFile(pending)
	require.NoError(t, err)
	s.refusal = http.StatusForbidden
	require.ErrorContains(t, store.Request(t.Context(), client, "mac-1"), "may not request certificates")
	again, err := os.ReadFile(pending)
	require.NoError(t, err)
	assert.Equal(t, kept, again, "one that asks again is known by its key")
	s.refusal = 0

	s.denial = &certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "TokenNotForMac", Message: "for mac-2"}
	require.EqualError(t, store.Request(t.Context(), client, "mac-1"), "the cluster denied the request (TokenNotForMac): for mac-2")
	assert.NoFileExists(t, pending, "what was denied is not asked again")
	require.Error(t, store.Request(t.Context(), client, "mac-1"))
	s.denial = nil
	require.NoError(t, store.Request(t.Context(), client, "mac-1"))
	require.Len(t, s.requests, 3)
	assert.NotEqual(t, s.requests[0].Name, s.requests[1].Name)

	// A power loss has truncated the key.
	require.NoError(t, os.WriteFile(pending, []byte("torn"), 0o600))
	require.NoError(t, store.Request(t.Context(), client, "mac-1"))
}

func TestCertificateOfAnotherNodeIsNotUsed(t *testing.T) {
	_, _, err := Read(t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
	s := newSigner(t)
	o := options(t, s)
	require.NoError(t, join(t, o))
	store, err := OpenStore(o.CertDir)
	require.NoError(t, err)
	assert.Nil(t, store.Valid("mac-2"))
	assert.NotNil(t, store.Valid("mac-1"))
}

func TestServing(t *testing.T) {
	s := newSigner(t)
	o := options(t, s)
	config, err := Join(t.Context(), o)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	get, err := Serving(t.Context(), client, "mac-1", "10.0.0.1", o.CertDir)
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		pair, err := get(nil)
		if assert.NoError(c, err) {
			assert.Equal(c, "system:node:mac-1", pair.Leaf.Subject.CommonName)
		}
	}, time.Minute, 10*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.requests[len(s.requests)-1]
	assert.Equal(t, certificatesv1.KubeletServingSignerName, last.Spec.SignerName)
	assert.ElementsMatch(t, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}, last.Spec.Usages)
	block, _ := pem.Decode(last.Spec.Request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(t, err)
	assert.Equal(t, []string{"mac-1"}, csr.DNSNames)
	require.Len(t, csr.IPAddresses, 1)
	assert.Equal(t, "10.0.0.1", csr.IPAddresses[0].String())
}
