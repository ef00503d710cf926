package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t: t, cert: cert, key: key}
}

func (a *authority) file() string {
	path := filepath.Join(a.t.TempDir(), "ca.crt")
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
	return path
}

func (a *authority) sign(change func(*x509.Certificate)) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: DefaultClientName, Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(a.t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func kubeAPIServer(*x509.Certificate) {}

func named(name string, groups ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name, Organization: groups} }
}

// serve serves an agent's API and returns its address.
func serve(t *testing.T, config ServerConfig) string {
	return serveWith(t, fake.NewClientset(), config)
}

// serveWith is serve with a client of kube-apiserver.
func serveWith(t *testing.T, client kubernetes.Interface, config ServerConfig) string {
	n := New(Config{Description: Description{Name: "mac-1", Address: "127.0.0.1"}, Client: client, Clock: clock.RealClock{}, OnPod: func(*corev1.Pod) {}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	config.ClientNames = []string{DefaultClientName}
	logs := func(_ context.Context, namespace, pod, _ string, _ api.ContainerLogOpts) (io.ReadCloser, error) {
		if pod != "vm" {
			return nil, errdefs.AsNotFound(errNoPod)
		}
		return io.NopCloser(strings.NewReader("console of " + namespace)), nil
	}
	if config.Logs == nil {
		config.Logs = logs
	}
	config.Exec = func(_ context.Context, namespace, _, _ string, command []string, streams api.AttachIO) error {
		in, err := io.ReadAll(streams.Stdin())
		if err != nil {
			return err
		}
		if _, err := io.WriteString(streams.Stdout(), namespace+" "+strings.Join(command, " ")+" "+string(in)); err != nil {
			return err
		}
		return utilexec.CodeExitError{Err: io.EOF, Code: 7}
	}
	config.PortForward = func(context.Context, string, string, int32, io.ReadWriteCloser) error { return nil }
	go func() { done <- n.Serve(ctx, listener, config) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return "https://" + listener.Addr().String()
}

func get(url string, certificate *tls.Certificate) (int, string, *tls.ConnectionState, error) {
	config := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if certificate == nil {
			return &tls.Certificate{}, nil
		}
		return certificate, nil
	}}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.TLS, err
}

func TestOnlyKubeAPIServerIsServed(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	address := serve(t, ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir()})
	for name, certificate := range map[string]*tls.Certificate{
		"a tenant":                    ca.sign(named("acme")),
		"an administrator":            ca.sign(named("admin", "system:masters")),
		"another Mac":                 ca.sign(named("system:node:mac-2", "system:nodes")),
		"the name as an organization": ca.sign(named("acme", DefaultClientName)),
		"another authority":           other.sign(kubeAPIServer),
		"a server's certificate":      ca.sign(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"expired": ca.sign(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/containerLogs/acme/vm/vm", "/pods", "/healthz"} {
				_, body, _, err := get(address+path, certificate)
				require.ErrorContains(t, err, "remote error: tls: ", body)
			}
		})
	}
	for _, path := range []string{"/containerLogs/acme/vm/vm", "/pods", "/healthz", "/metrics", "/metrics/../pods", "//metrics"} {
		code, body, _, err := get(address+path, nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnauthorized, code, path)
		assert.Equal(t, "only kube-apiserver is served here; use kubectl\n", body, path)
	}
	client := ca.sign(kubeAPIServer)
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/containerLogs/acme/vm/vm":             {http.StatusOK, "console of acme"},
		"/containerLogs/acme/none/vm":           {http.StatusNotFound, "no such pod"},
		"/containerLogs/acme/vm/vm?tailLines=x": {http.StatusBadRequest, "tailLines"},
	} {
		code, body, _, err := get(address+path, client)
		require.NoError(t, err)
		assert.Equal(t, want.code, code)
		assert.Contains(t, body, want.body)
	}
}

func TestNoClientIsServedWithoutAnAuthority(t *testing.T) {
	n := New(Config{Description: Description{Name: "mac-1"}, Client: fake.NewClientset(), Clock: clock.RealClock{}, OnPod: func(*corev1.Pod) {}})
	for _, config := range []ServerConfig{{ClientNames: []string{DefaultClientName}}, {ClientCAFile: newAuthority(t).file()}} {
		config.CertDir = t.TempDir()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		require.ErrorContains(t, n.Serve(context.Background(), listener, config), "client certificate or its name is missing")
	}
}

// A client such as kube-apiserver runs a command and receives its exit code.
func TestExec(t *testing.T) {
	ca := newAuthority(t)
	address := serve(t, ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir()})
	client := ca.sign(kubeAPIServer)
	key, err := x509.MarshalECPrivateKey(client.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)
	config := &rest.Config{Host: address, TLSClientConfig: rest.TLSClientConfig{
		Insecure: true,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client.Certificate[0]}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}),
	}}
	run := func(path string) (string, error) {
		u, err := url.Parse(address + path)
		require.NoError(t, err)
		executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var out strings.Builder
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &out})
		return out.String(), err
	}
	out, err := run("/exec/acme/vm/vm?command=echo&command=a+b&input=1&output=1")
	assert.Equal(t, "acme echo a b in", out)
	var exit utilexec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitStatus())
	_, err = run("/attach/acme/vm/vm?input=1&output=1")
	require.ErrorContains(t, err, "use kubectl exec")
}

func TestServingCertificateIsKept(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	client := ca.sign(kubeAPIServer)
	seen := func(config ServerConfig) *x509.Certificate {
		config.ClientCAFile = ca.file()
		_, _, state, err := get(serve(t, config)+"/containerLogs/acme/vm/vm", client)
		require.NoError(t, err)
		return state.PeerCertificates[0]
	}
	first := seen(ServerConfig{CertDir: dir})
	assert.Equal(t, first.Raw, seen(ServerConfig{CertDir: dir}).Raw)
	assert.Equal(t, "127.0.0.1", first.IPAddresses[0].String())
	signed := ca.sign(named("system:node:mac-1"))
	assert.Equal(t, signed.Certificate[0], seen(ServerConfig{
		CertDir: dir, Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return signed, nil },
	}).Raw, "the cluster's comes first")
}
