// Package credentials obtains the agent's certificate, as a kubelet does.
package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// retryBase and retryMax bound the wait between requests for the first certificate.
	retryBase = 2 * time.Second
	retryMax  = time.Minute
	// clientQPS and clientBurst are sufficient for one Mac.
	clientQPS   = 20
	clientBurst = 40
)

// Options configure how an agent joins its cluster.
type Options struct {
	NodeName string
	// Kubeconfig is the path of the file that is written once the agent has a certificate.
	Kubeconfig string
	// BootstrapKubeconfig holds a bootstrap token. It is needed until the agent has a certificate,
	// and again after that has expired.
	BootstrapKubeconfig string
	// CertDir holds the certificate and its key.
	CertDir string
}

// Join returns the configuration of a client that is system:node:<NodeName>. Without a certificate
// it requests one with the bootstrap kubeconfig until one is signed or ctx ends. The certificate is
// rotated until ctx ends, and the client uses the newest. If the certificate expires nevertheless,
// the agent uses one that `macrack-agent join` stores in CertDir.
func Join(ctx context.Context, o Options) (*rest.Config, error) {
	server, err := o.server()
	if err != nil {
		return nil, err
	}
	store, err := OpenStore(o.CertDir)
	if err != nil {
		return nil, err
	}
	if store.Valid(o.NodeName) == nil {
		if err := o.bootstrap(ctx, store); err != nil {
			return nil, err
		}
	}
	if err := o.WriteKubeconfig(server); err != nil {
		return nil, err
	}
	config, err := store.follow(server)
	if err != nil {
		return nil, err
	}
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx: &ctx,
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			return o.renewalClient(store, config, current)
		},
		GetTemplate: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{Subject: *subject(o.NodeName)}
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
	return config, nil
}

// bootstrap requests the first certificate until the cluster has signed it.
func (o *Options) bootstrap(ctx context.Context, store *Store) error {
	client, err := o.bootstrapClient()
	if err != nil {
		return err
	}
	klog.InfoS("Requesting the agent's certificate", "node", o.NodeName)
	backoff := wait.Backoff{Duration: retryBase, Factor: 2, Jitter: 0.1, Steps: 1 << 30, Cap: retryMax}
	err = wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		if store.reread(o.NodeName) {
			return true, nil
		}
		err := store.Request(ctx, client, o.NodeName)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Failed to obtain the agent's certificate; retrying", "node", o.NodeName)
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("no certificate was signed: %w", err)
	}
	return nil
}

// renewalClient returns the client that requests the next certificate: as the Node, or with the
// bootstrap token if the certificate is gone. current is the manager's certificate; nil if it has
// expired.
func (o *Options) renewalClient(store *Store, asNode *rest.Config, current *tls.Certificate) (kubernetes.Interface, error) {
	if current == nil && !store.reread(o.NodeName) {
		return o.bootstrapClient()
	}
	return kubernetes.NewForConfig(apiclient.Protobuf(asNode))
}

func (o *Options) bootstrapClient() (kubernetes.Interface, error) {
	if o.BootstrapKubeconfig == "" {
		return nil, fmt.Errorf("this Mac has no valid certificate of %s in %s: run `macrack-agent join` and a new bootstrap token", o.NodeName, o.CertDir)
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.BootstrapKubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(apiclient.Protobuf(config))
}

// server returns the cluster's address and CA, without credentials: from the kubeconfig of an
// earlier join, or else from the bootstrap kubeconfig.
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
	return nil, fmt.Errorf("this Mac has not joined a cluster: the kubeconfig %q does not exist; use `macrack-agent join`", o.Kubeconfig)
}

// WriteKubeconfig writes the kubeconfig of an agent that has a certificate, readable only by its
// owner. It does not rewrite an equal file.
func (o *Options) WriteKubeconfig(server *rest.Config) error {
	const name = "default"
	if o.Kubeconfig == "" {
		return nil
	}
	pem := (&Store{dir: o.CertDir}).Path()
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   server.Host,
			TLSServerName:            server.ServerName,
			CertificateAuthority:     server.CAFile,
			CertificateAuthorityData: server.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificate: pem, ClientKey: pem}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(o.Kubeconfig); err == nil && string(have) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.Kubeconfig), 0o700); err != nil {
		return err
	}
	return contract.WriteFile(o.Kubeconfig, data)
}
