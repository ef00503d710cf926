package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"
)

// servingPairName is the prefix of the serving certificate's files.
const servingPairName = "agent-serving"

var errNotSigned = errors.New("the agent's serving certificate is not signed yet")

// GetCertificate returns the serving certificate for a connection.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Serving obtains the agent's serving certificate, for the Node's name and address, stores it in
// dir, and renews it until ctx ends. Connections fail until it is signed.
func Serving(ctx context.Context, client kubernetes.Interface, node, address, dir string) (GetCertificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	store, err := certificate.NewFileStoreWithLogger(klog.FromContext(ctx), servingPairName, dir, dir, "", "")
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: *subject(node), DNSNames: []string{node}}
	if ip := net.ParseIP(address); ip != nil {
		template.IPAddresses = []net.IP{ip}
	}
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx:              &ctx,
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		GetTemplate:      func() *x509.CertificateRequest { return template },
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        certificate.DefaultKubeletServingGetUsages,
		CertificateStore: store,
		Name:             "macrack-agent-serving",
	})
	if err != nil {
		return nil, err
	}
	manager.Start()
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if current := manager.Current(); current != nil {
			return current, nil
		}
		return nil, errNotSigned
	}, nil
}
