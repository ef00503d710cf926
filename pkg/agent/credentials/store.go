package credentials

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
	// pendingKey is the key of a requested certificate: after a crash it identifies the pending
	// request.
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

// OpenStore opens the certificate in dir, which it creates if it does not exist. It repairs an
// interrupted renewal, so only one process may have the store open.
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

// Read returns the certificate in dir, expired or not, and the name of its Node. It changes
// nothing, so it is safe while an agent uses dir. The error is fs.ErrNotExist if there is no
// certificate.
func Read(dir string) (*x509.Certificate, string, error) {
	certs, err := certutil.CertsFromFile((&Store{dir: dir}).Path())
	if err != nil {
		return nil, "", err
	}
	return certs[0], rules.NodeOfUser(certs[0].Subject.CommonName), nil
}

// Path returns the path of the newest certificate and its key.
func (s *Store) Path() string { return filepath.Join(s.dir, pairName+"-current.pem") }

// Certificate returns the certificate, expired or not, or nil.
func (s *Store) Certificate() *x509.Certificate {
	pair := s.current.Load()
	if pair == nil {
		return nil
	}
	return pair.Leaf
}

// Valid returns the certificate if it belongs to the Node and has not expired.
func (s *Store) Valid(node string) *x509.Certificate {
	if leaf := s.Certificate(); leaf != nil && validFor(leaf, node) {
		return leaf
	}
	return nil
}

func validFor(leaf *x509.Certificate, node string) bool {
	return leaf.Subject.CommonName == rules.NodeUser(node) && leaf.NotAfter.After(clock.RealClock{}.Now())
}

// reread reports whether the certificate is valid for the Node. If it is not, it reads the disk,
// where another process may have stored a newer one.
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

// use sets the certificate of new connections. It closes the old connections, because the server
// rejects their requests once the old certificate has expired.
func (s *Store) use(pair *tls.Certificate) {
	s.current.Store(pair)
	s.dialer.CloseAll()
	klog.InfoS("Agent certificate renewed", "subject", pair.Leaf.Subject.String(), "expires", pair.Leaf.NotAfter)
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

// follow returns a client of the server that presents the newest certificate.
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

// Request requests the first certificate of a Node and waits until it is signed or denied, or ctx
// ends. After an interruption the next call resumes.
func (s *Store) Request(ctx context.Context, client kubernetes.Interface, node string) error {
	keyFile := filepath.Join(s.dir, pendingKey)
	keyPEM, _, err := keyutil.LoadOrGenerateKeyFile(keyFile)
	if err != nil {
		// A power loss may have truncated the key. No certificate uses it yet.
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
		return fmt.Errorf("%s does not hold a signing key", keyFile)
	}
	request, err := certutil.MakeCSR(key, subject(node), nil, nil)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return err
	}
	// The name is derived from the request, so that a repeated request finds the first one.
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
		return fmt.Errorf("the signed certificate belongs to %s and expires %s; compare the clocks of this Mac and of the cluster", pair.Leaf.Subject, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

func explainRequest(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the bootstrap token has expired or was deleted; create a new one with `macrack-agent token create`: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the bootstrap token may not request certificates; create one with `macrack-agent token create`: %w", err)
	}
	return err
}

// explainWait returns the reason why no certificate was signed. After a denial, the next request is
// a new one.
func (s *Store) explainWait(ctx context.Context, client kubernetes.Interface, name string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("CertificateSigningRequest %s is still pending; check that macrack-controllers runs, see `kubectl get csr %[1]s`, then join again: %w", name, ctx.Err())
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
		return fmt.Errorf("the cluster denied the request (%s): %s", c.Reason, c.Message)
	}
	return err
}
