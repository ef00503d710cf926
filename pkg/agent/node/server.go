package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"macrack.io/macrack/pkg/vm/contract"
)

// ServerConfig is what the agent's kubelet-style API needs.
type ServerConfig struct {
	NodeName string
	Client   kubernetes.Interface
	// ClientCAFile verifies client certificates, such as kube-apiserver's; without
	// it only bearer tokens are accepted.
	ClientCAFile string
	// Certificate returns the server's certificate; nil for the one in CertDir.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// CertDir holds the server's certificate, self-signed if there is none.
	CertDir string
	// Logs opens the console of the pod's virtual machine.
	Logs func(ctx context.Context, namespace, pod string, options api.ContainerLogOpts) (io.ReadCloser, error)
}

// errNoExec is what exec, attach and port-forward answer.
var errNoExec = errdefs.AsInvalidInput(errors.New("a command in a virtual machine is not supported yet: use ssh to the instance's ipAddress with a key of its sshAuthorizedKeys"))

// Serve serves the API on listener until ctx ends. Callers are authenticated and
// authorized by the cluster, as by a kubelet: nodes/proxy.
func (n *Node) Serve(ctx context.Context, listener net.Listener, config ServerConfig) error {
	getCertificate := config.Certificate
	if getCertificate == nil {
		certificate, err := servingCertificate(config.CertDir, n.config.Name, n.config.Address)
		if err != nil {
			return err
		}
		getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	auth, err := nodeutil.WebhookAuth(config.Client, config.NodeName, func(c *nodeutil.WebhookAuthConfig) error {
		if config.ClientCAFile == "" {
			return nil
		}
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", config.ClientCAFile)
		if err != nil {
			return err
		}
		go ca.Run(ctx, 1)
		c.AuthnConfig.ClientCertificateCAContentProvider = ca
		return nil
	})
	if err != nil {
		return err
	}
	handler := api.PodHandler(api.PodHandlerConfig{
		GetContainerLogs: func(ctx context.Context, namespace, pod, _ string, options api.ContainerLogOpts) (io.ReadCloser, error) {
			return config.Logs(ctx, namespace, pod, options)
		},
		RunInContainer: func(context.Context, string, string, string, []string, api.AttachIO) error { return errNoExec },
		AttachToContainer: func(context.Context, string, string, string, api.AttachIO) error {
			return errNoExec
		},
		PortForward: func(context.Context, string, string, int32, io.ReadWriteCloser) error { return errNoExec },
		GetPods:     n.provider.GetPods,
		GetPodsFromKubernetes: func(context.Context) ([]*corev1.Pod, error) {
			return n.Pods().List(labels.Everything())
		},
	}, false)
	server := &http.Server{
		Handler:           nodeutil.WithAuth(auth, handler),
		ReadHeaderTimeout: 30 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: getCertificate, ClientAuth: tls.RequestClientCert},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// servingCertificate reads the certificate of the agent's API, or makes one.
func servingCertificate(dir, name, address string) (*tls.Certificate, error) {
	certFile, keyFile := filepath.Join(dir, "agent-server.crt"), filepath.Join(dir, "agent-server.key")
	if _, err := os.Stat(certFile); errors.Is(err, os.ErrNotExist) {
		var ips []net.IP
		if ip := net.ParseIP(address); ip != nil {
			ips = append(ips, ip)
		}
		cert, key, err := certutil.GenerateSelfSignedCertKey(name, ips, nil)
		if err != nil {
			return nil, fmt.Errorf("make a serving certificate: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		// The certificate goes last: it says that the key is there.
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
