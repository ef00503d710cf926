// Package identity is who an agent and its virtual machines are: the agent's
// certificate, got like a kubelet's, and the MAC addresses of machines.
package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// pairName is the prefix of the certificate's files.
	pairName = "agent-client"
	// clientQPS and clientBurst are enough for one Mac.
	clientQPS   = 20
	clientBurst = 40
)

// Options say how an agent joins its cluster.
type Options struct {
	NodeName string
	// Kubeconfig is written once the agent has a certificate, and names its file.
	Kubeconfig string
	// BootstrapKubeconfig has a bootstrap token. It is needed only until the agent
	// has a certificate, and again if that expired.
	BootstrapKubeconfig string
	// CertDir holds the certificate and its key.
	CertDir string
}

// Join returns the configuration of a client that is system:node:<NodeName>. The
// first time it asks the cluster for a certificate and waits until one is signed
// or ctx ends. The certificate is rotated until ctx ends, and the client follows.
func Join(ctx context.Context, o Options) (*rest.Config, error) {
	if err := os.MkdirAll(o.CertDir, 0o700); err != nil {
		return nil, err
	}
	store, err := certificate.NewFileStoreWithLogger(klog.FromContext(ctx), pairName, o.CertDir, o.CertDir, "", "")
	if err != nil {
		return nil, err
	}
	server, err := o.server()
	if err != nil {
		return nil, err
	}
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx: &ctx,
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			config, err := o.signingClient(server, store.CurrentPath(), current)
			if err != nil {
				return nil, err
			}
			return kubernetes.NewForConfig(config)
		},
		GetTemplate: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{Subject: pkix.Name{
				CommonName:   "system:node:" + o.NodeName,
				Organization: []string{"system:nodes"},
			}}
		},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: store,
		Name:             "macrack-agent",
	})
	if err != nil {
		return nil, err
	}
	manager.Start()
	if err := waitForCertificate(ctx, manager); err != nil {
		manager.Stop()
		return nil, err
	}
	config := withCertificate(server, store.CurrentPath())
	if err := o.writeKubeconfig(config); err != nil {
		return nil, err
	}
	return config, nil
}

// waitForCertificate looks once a second: the manager has no way to tell.
func waitForCertificate(ctx context.Context, manager certificate.Manager) error {
	if manager.Current() == nil {
		klog.InfoS("Waiting for the cluster to sign this agent's certificate")
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for manager.Current() == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no certificate was signed: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// server returns the cluster's address and CA, without credentials: from the
// kubeconfig of an earlier join, or else from the bootstrap kubeconfig.
func (o *Options) server() (*rest.Config, error) {
	for _, path := range []string{o.Kubeconfig, o.BootstrapKubeconfig} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			continue
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return rest.AnonymousClientConfig(config), nil
	}
	return nil, fmt.Errorf("neither the kubeconfig %q nor the bootstrap kubeconfig %q exists: give a bootstrap kubeconfig with a token", o.Kubeconfig, o.BootstrapKubeconfig)
}

// signingClient asks for certificates: as this node if it has one, else with the
// bootstrap token.
func (o *Options) signingClient(server *rest.Config, pem string, current *tls.Certificate) (*rest.Config, error) {
	if current != nil {
		return withCertificate(server, pem), nil
	}
	if o.BootstrapKubeconfig == "" {
		return nil, fmt.Errorf("no valid certificate, and no bootstrap kubeconfig to get one with")
	}
	return clientcmd.BuildConfigFromFlags("", o.BootstrapKubeconfig)
}

// withCertificate names the certificate by its file, which client-go reads again
// when it is rotated.
func withCertificate(server *rest.Config, pem string) *rest.Config {
	config := rest.CopyConfig(server)
	config.CertFile, config.KeyFile = pem, pem
	config.UserAgent = "macrack-agent"
	config.QPS, config.Burst = clientQPS, clientBurst
	return config
}

func (o *Options) writeKubeconfig(config *rest.Config) error {
	const name = "default"
	if o.Kubeconfig == "" {
		return nil
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   config.Host,
			TLSServerName:            config.ServerName,
			CertificateAuthority:     config.CAFile,
			CertificateAuthorityData: config.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificate: config.CertFile, ClientKey: config.KeyFile}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.Kubeconfig), 0o700); err != nil {
		return err
	}
	return contract.WriteFile(o.Kubeconfig, data)
}

// NewMACAddress returns a random locally administered unicast address.
func NewMACAddress() string {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)        // never fails
	mac[0] = mac[0]&^0b01 | 0b10 // unicast, locally administered
	return mac.String()
}
