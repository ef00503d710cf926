package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 365 * 24 * time.Hour
	leafRenewal  = 30 * 24 * time.Hour // a leaf with less than this left is issued again
)

// pki is a directory of certificates: <name>.crt and <name>.key. Existing certificates are reused.
type pki struct{ dir string }

func (p pki) certFile(name string) string { return filepath.Join(p.dir, name+".crt") }
func (p pki) keyFile(name string) string  { return filepath.Join(p.dir, name+".key") }

// authority is a certificate authority in a pki.
type authority struct {
	pki
	name string
	cert *x509.Certificate
	key  crypto.Signer
}

// authority returns the authority of this name, and creates it if necessary.
func (p pki) authority(name string) (*authority, error) {
	if c, key, err := p.load(name); err == nil {
		return &authority{pki: p, name: name, cert: c, key: key}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := p.newKey(name)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "macrack-dev-" + name},
		NotAfter:              time.Now().Add(caLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	c, err := p.sign(name, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &authority{pki: p, name: name, cert: c, key: key}, nil
}

// server issues a serving certificate for loopback and further DNS names. It is also a client
// certificate, because etcd members are both.
func (a *authority) server(name string, dnsNames ...string) error {
	return a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    append([]string{"localhost"}, dnsNames...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// client issues a client certificate: user is its common name, groups are its organizations.
func (a *authority) client(name, user string, groups ...string) error {
	return a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(name string, template *x509.Certificate) error {
	if c, _, err := a.load(name); err == nil && time.Until(c.NotAfter) > leafRenewal && c.CheckSignatureFrom(a.cert) == nil {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	template.NotAfter = time.Now().Add(leafLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	_, err = a.sign(name, template, a.cert, key.Public(), a.key)
	return err
}

func (p pki) sign(name string, template, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
	if err != nil {
		return nil, fmt.Errorf("signing certificate %s: %w", name, err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
	if err := writeFile(p.certFile(name), block, 0o644); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newKey writes a new private key before its certificate, so that a certificate that exists always
// has its key.
func (p pki) newKey(name string) (crypto.Signer, error) {
	if err := removeIfExists(p.certFile(name)); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(p.keyFile(name), data, 0o600)
}

func (p pki) load(name string) (*x509.Certificate, crypto.Signer, error) {
	certs, err := cert.CertsFromFile(p.certFile(name))
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(p.keyFile(name))
	if err != nil {
		return nil, nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not a signing key", p.keyFile(name))
	}
	return certs[0], signer, nil
}

// signingKey creates the key pair that signs service account tokens: <name>.key and <name>.pub.
func (p pki) signingKey(name string) (private, public string, err error) {
	private, public = p.keyFile(name), filepath.Join(p.dir, name+".pub")
	if _, err := os.Stat(public); err == nil {
		return private, public, nil
	}
	key, err := p.newKey(name)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	var block bytes.Buffer
	if err := pem.Encode(&block, &pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der}); err != nil {
		return "", "", err
	}
	return private, public, writeFile(public, block.Bytes(), 0o644)
}
