package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"

	"macrack.io/macrack/pkg/vm/contract"
)

// DefaultClientName is the common name of kube-apiserver's kubelet client certificate in kubeadm
// clusters.
const DefaultClientName = "kube-apiserver-kubelet-client"

const (
	// streamIdle is the idle timeout of a session, and streamCreation the timeout of the creation
	// of its streams. Both are those of kubelets.
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
	// idleTimeout ends unused connections: clients without a certificate may connect.
	idleTimeout = 2 * time.Minute
)

// ServerConfig configures the agent's kubelet-style API.
type ServerConfig struct {
	// ClientCAFile verifies the client's certificate, and ClientNames are the permitted common
	// names: those of kube-apiserver, which authorizes users before it connects. Other clients with
	// certificates of the same authority, such as nodes and tenants, are refused.
	ClientCAFile string
	ClientNames  []string
	// Certificate returns the server's certificate; nil uses the one in CertDir.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// CertDir holds the server's certificate. Without one, a self-signed certificate is created.
	CertDir string
	// Logs opens the console of the pod's virtual machine.
	Logs api.ContainerLogsHandlerFunc
	// Exec runs a command in the virtual machine; PortForward connects to a port of it.
	Exec        api.ContainerExecHandlerFunc
	PortForward api.PortForwardHandlerFunc
	// Metrics serves the metrics of the Mac; may be nil. Permitted users read them with a bearer
	// token, without kube-apiserver.
	Metrics http.Handler
}

// errNoAttach is the response to attach.
var errNoAttach = errdefs.InvalidInput("a virtual machine has no process to attach to; use kubectl exec to run a command in it, or kubectl logs to read its console")

// Serve serves the API on listener until ctx ends, to kube-apiserver only. Metrics are also served
// to users who may read them.
func (n *Node) Serve(ctx context.Context, listener net.Listener, config ServerConfig) error {
	tlsConfig, err := n.tlsConfig(ctx, config)
	if err != nil {
		return err
	}
	pods := api.PodHandler(api.PodHandlerConfig{
		GetContainerLogs:      config.Logs,
		RunInContainer:        config.Exec,
		AttachToContainer:     func(context.Context, string, string, string, api.AttachIO) error { return errNoAttach },
		GetPods:               n.provider.GetPods,
		StreamIdleTimeout:     streamIdle,
		StreamCreationTimeout: streamCreation,
		GetPodsFromKubernetes: func(context.Context) ([]*corev1.Pod, error) {
			return n.Pods().List(labels.Everything())
		},
	}, false)
	// The library's own handler confuses the two timeouts.
	router := mux.NewRouter()
	router.Handle("/portForward/{namespace}/{pod}", api.HandlePortForward(config.PortForward,
		api.WithPortForwardStreamIdleTimeout(streamIdle), api.WithPortForwardCreationTimeout(streamCreation))).Methods(http.MethodPost, http.MethodGet)
	router.PathPrefix("/").Handler(pods)
	handler := onlyKubeAPIServer(new(streamLimit).wrap(router))
	if config.Metrics != nil {
		if handler, err = n.withMetrics(config.Metrics, handler); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: idleTimeout, TLSConfig: tlsConfig}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// withMetrics serves the metrics beside the rest of the API.
func (n *Node) withMetrics(metrics, rest http.Handler) (http.Handler, error) {
	scrapers, err := newScrapers(n.config.Name, n.config.Client)
	if err != nil {
		return nil, err
	}
	metrics = scrapers.only(metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == metricsPath {
			metrics.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	}), nil
}

// onlyKubeAPIServer returns a handler that serves next to kube-apiserver.
func onlyKubeAPIServer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isKubeAPIServer(r) {
			unauthorized(w, "only kube-apiserver is served here; use kubectl")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isKubeAPIServer reports whether the client of a request is kube-apiserver. The certificate of a
// connection, if there is one, was verified when it began.
func isKubeAPIServer(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

func (n *Node) tlsConfig(ctx context.Context, config ServerConfig) (*tls.Config, error) {
	if config.ClientCAFile == "" || len(config.ClientNames) == 0 {
		return nil, errors.New("the CA of kube-apiserver's client certificate or its name is missing")
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", config.ClientCAFile)
	if err != nil {
		return nil, err
	}
	go ca.Run(ctx, 1)
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequestClientCert, // VerifyConnection checks it
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil // onlyKubeAPIServer and scrapers refuse the request
			}
			options, ok := ca.VerifyOptions()
			if !ok {
				return errors.New("the CA of client certificates is unknown")
			}
			return verifyClient(state.PeerCertificates, options, config.ClientNames)
		},
	}
	if config.Certificate != nil {
		tlsConfig.GetCertificate = config.Certificate
		return tlsConfig, nil
	}
	certificate, err := servingCertificate(config.CertDir, n.config.Name, n.config.Address)
	if err != nil {
		return nil, err
	}
	tlsConfig.Certificates = []tls.Certificate{*certificate}
	return tlsConfig, nil
}

// verifyClient accepts client certificates with a chain to the authority and a permitted name.
func verifyClient(chain []*x509.Certificate, options x509.VerifyOptions, names []string) error {
	if len(chain) == 0 {
		return errors.New("the client presented no certificate")
	}
	options.Intermediates = x509.NewCertPool()
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	if _, err := chain[0].Verify(options); err != nil {
		return err
	}
	if name := chain[0].Subject.CommonName; !slices.Contains(names, name) {
		return fmt.Errorf("client %q refused; only kube-apiserver is permitted (%s)", name, strings.Join(names, ", "))
	}
	return nil
}

// CertificateFile returns the file in dir of a serving certificate that the cluster has not signed.
func CertificateFile(dir string) string { return filepath.Join(dir, "agent-server.crt") }

// servingCertificate reads the certificate of the agent's API, or creates one.
func servingCertificate(dir, name, address string) (*tls.Certificate, error) {
	certFile, keyFile := CertificateFile(dir), filepath.Join(dir, "agent-server.key")
	if _, err := os.Stat(certFile); errors.Is(err, os.ErrNotExist) {
		var ips []net.IP
		if ip := net.ParseIP(address); ip != nil {
			ips = append(ips, ip)
		}
		cert, key, err := certutil.GenerateSelfSignedCertKey(name, ips, nil)
		if err != nil {
			return nil, fmt.Errorf("create serving certificate: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		// The certificate is written last: its presence implies that of the key.
		if err := contract.WriteFile(keyFile, key); err != nil {
			return nil, err
		}
		if err := contract.WriteFile(certFile, cert); err != nil {
			return nil, err
		}
	}
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &certificate, nil
}
