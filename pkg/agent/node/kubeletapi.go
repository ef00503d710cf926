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
}

// errNoAttach is the response to attach.
var errNoAttach = errdefs.InvalidInput("a virtual machine has no process to attach to; use kubectl exec to run a command in it, or kubectl logs to read its console")

// Serve serves the API on listener until ctx ends, to kube-apiserver only.
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
	server := &http.Server{Handler: new(streamLimit).wrap(router), ReadHeaderTimeout: 30 * time.Second, TLSConfig: tlsConfig}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
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
		ClientAuth: tls.RequireAnyClientCert, // VerifyConnection checks it
		VerifyConnection: func(state tls.ConnectionState) error {
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

// servingCertificate reads the certificate of the agent's API, or creates one.
func servingCertificate(dir, name, address string) (*tls.Certificate, error) {
	certFile, keyFile := filepath.Join(dir, "agent-server.crt"), filepath.Join(dir, "agent-server.key")
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
