package identity

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// pairName is the prefix of the certificate's files.
	pairName = "agent-client"
	// pendingKey is the key of a certificate that is being asked for: one that asks
	// again after a crash is known by it.
	pendingKey = pairName + "-pending.key"

	dialTimeout   = 30 * time.Second
	dialKeepAlive = 30 * time.Second
)

// Store keeps the agent's client certificate and its key on disk.
type Store struct {
	certificate.Store
	dir     string
	dialer  *connrotation.Dialer
	current atomic.Pointer[tls.Certificate]
}

// OpenStore returns the certificate in dir, which it makes if it does not exist. It
// mends what an interrupted renewal has left, so only one may have it open.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := certificate.NewFileStoreWithLogger(klog.Background().V(4), pairName, dir, dir, "", "")
	if err != nil {
		return nil, err
	}
	s := &Store{
		Store: files, dir: dir,
		dialer: connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: dialKeepAlive}).DialContext),
	}
	if pair, err := files.Current(); err == nil {
		s.current.Store(pair)
	}
	return s, nil
}

// Read returns the certificate in dir, expired or not, and the name of the Node that
// it is of. It changes nothing, so it may be called while an agent uses dir. The
// error is fs.ErrNotExist if there is none.
func Read(dir string) (*x509.Certificate, string, error) {
	certs, err := certutil.CertsFromFile((&Store{dir: dir}).Path())
	if err != nil {
		return nil, "", err
	}
	return certs[0], rules.NodeOfUser(certs[0].Subject.CommonName), nil
}

// Path is the file with the newest certificate and its key.
func (s *Store) Path() string { return filepath.Join(s.dir, pairName+"-current.pem") }

// Certificate returns the certificate, expired or not; nil if there is none.
func (s *Store) Certificate() *x509.Certificate {
	pair := s.current.Load()
	if pair == nil {
		return nil
	}
	return pair.Leaf
}

// Valid returns the certificate if it is that of the Node and has not expired.
func (s *Store) Valid(node string) *x509.Certificate {
	if leaf := s.Certificate(); leaf != nil && validFor(leaf, node) {
		return leaf
	}
	return nil
}

func validFor(leaf *x509.Certificate, node string) bool {
	return leaf.Subject.CommonName == rules.NodeUser(node) && leaf.NotAfter.After(clock.RealClock{}.Now())
}

// reread makes sure that the certificate is valid for the Node; if it is not, one is
// looked for on the disk, where another process may have put it.
func (s *Store) reread(node string) bool {
	if s.Valid(node) != nil {
		return true
	}
	pair, err := s.Store.Current()
	if err != nil || !validFor(pair.Leaf, node) {
		return false
	}
	s.use(pair)
	return true
}

// use makes a certificate the one that is shown. Connections that showed the old one
// are closed, as the server refuses what comes through them once it has expired.
func (s *Store) use(pair *tls.Certificate) {
	s.current.Store(pair)
	s.dialer.CloseAll()
	klog.InfoS("This agent has a new certificate", "subject", pair.Leaf.Subject.String(), "expires", pair.Leaf.NotAfter)
}

// Update implements certificate.Store.
func (s *Store) Update(cert, key []byte) (*tls.Certificate, error) {
	pair, err := s.Store.Update(cert, key)
	if err != nil {
		return nil, err
	}
	s.use(pair)
	return pair, nil
}

// follow returns a client of the server that shows the newest certificate.
func (s *Store) follow(server *rest.Config) (*rest.Config, error) {
	anonymous := rest.AnonymousClientConfig(server)
	options, err := anonymous.TransportConfig()
	if err != nil {
		return nil, err
	}
	options.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: func() (*tls.Certificate, error) { return s.current.Load(), nil }}
	options.DialHolder = &transport.DialHolder{Dial: s.dialer.DialContext}
	config := &rest.Config{
		Host: anonymous.Host, APIPath: anonymous.APIPath, UserAgent: "macrack-agent",
		QPS: clientQPS, Burst: clientBurst,
	}
	config.Transport, err = transport.New(options)
	return config, err
}

func subject(node string) *pkix.Name {
	return &pkix.Name{CommonName: rules.NodeUser(node), Organization: []string{rules.NodesGroup}}
}

// Request asks for the first certificate of a Node and waits until it is signed or
// denied, or ctx ends. Interrupted at any time, the next call goes on.
func (s *Store) Request(ctx context.Context, client kubernetes.Interface, node string) error {
	keyFile := filepath.Join(s.dir, pendingKey)
	keyPEM, _, err := keyutil.LoadOrGenerateKeyFile(keyFile)
	if err != nil {
		// Torn by a power loss, perhaps: there is no certificate for it yet.
		if err := os.Remove(keyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if keyPEM, _, err = keyutil.LoadOrGenerateKeyFile(keyFile); err != nil {
			return err
		}
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("%s is not a signing key", keyFile)
	}
	request, err := certutil.MakeCSR(key, subject(node), nil, nil)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return err
	}
	// The name follows from what is asked, so that asking again finds the first request.
	sum := sha256.Sum256(append([]byte(node+"\n"), public...))
	name := "macrack-" + hex.EncodeToString(sum[:16])
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, name, certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		certificate.DefaultKubeletClientGetUsages(key), key)
	if err != nil {
		return explainRequest(err)
	}
	cert, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return s.explainWait(ctx, client, name, err)
	}
	pair, err := s.Update(cert, keyPEM)
	if err != nil {
		return err
	}
	if err := contract.RemoveFile(keyFile); err != nil {
		return err
	}
	if s.Valid(node) == nil {
		return fmt.Errorf("the certificate that the cluster signed is of %s and ends %s: compare the clocks of this Mac and of the cluster", pair.Leaf.Subject, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

func explainRequest(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster does not know the bootstrap token: it has expired or was deleted; make a new one with `macrack-agent token create`: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the bootstrap token may not ask for certificates; make one with `macrack-agent token create`: %w", err)
	}
	return err
}

// explainWait says why no certificate was signed. After a denial the next request
// is a new one.
func (s *Store) explainWait(ctx context.Context, client kubernetes.Interface, name string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("nobody has decided about CertificateSigningRequest %s: is macrack-controllers running? `kubectl get csr %[1]s` says more; join again to go on waiting: %w", name, ctx.Err())
	}
	request, getErr := client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if getErr != nil {
		return err
	}
	for _, c := range request.Status.Conditions {
		if c.Type != certificatesv1.CertificateDenied && c.Type != certificatesv1.CertificateFailed {
			continue
		}
		if err := contract.RemoveFile(filepath.Join(s.dir, pendingKey)); err != nil {
			return err
		}
		return fmt.Errorf("the cluster refuses (%s): %s", c.Reason, c.Message)
	}
	return err
}
