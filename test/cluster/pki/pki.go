// Package pki issues the certificates of a cluster.
package pki

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

	"macrack.io/macrack/test/cluster/process"
)

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 365 * 24 * time.Hour
	leafRenewal  = 30 * 24 * time.Hour // a leaf with less than this left is issued again
)

// Dir is a directory of certificates: <name>.crt and <name>.key. Existing certificates are reused.
type Dir string

// CertFile returns the path of a certificate.
func (d Dir) CertFile(name string) string { return filepath.Join(string(d), name+".crt") }

// KeyFile returns the path of a private key.
func (d Dir) KeyFile(name string) string { return filepath.Join(string(d), name+".key") }

// Authority is a certificate authority in a pki.
type Authority struct {
	Dir
	name string
	cert *x509.Certificate
	key  crypto.Signer
}

// Authority returns the authority of this name, and creates it if necessary.
func (d Dir) Authority(name string) (*Authority, error) {
	if c, key, err := d.load(name); err == nil {
		return &Authority{Dir: d, name: name, cert: c, key: key}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := d.newKey(name)
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
	c, err := d.sign(name, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Authority{Dir: d, name: name, cert: c, key: key}, nil
}

// Server issues a serving certificate for loopback, and further DNS names and IP addresses. It is
// also a client certificate, because etcd members are both.
func (a *Authority) Server(name string, hosts ...string) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(name, template)
}

// Client issues a client certificate: user is its common name, groups are its organizations.
func (a *Authority) Client(name, user string, groups ...string) error {
	return a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issue(name string, template *x509.Certificate) error {
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

func (d Dir) sign(name string, template, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
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
	if err := process.WriteFile(d.CertFile(name), block, 0o644); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newKey writes a new private key before its certificate, so that a certificate that exists always
// has its key.
func (d Dir) newKey(name string) (crypto.Signer, error) {
	if err := process.RemoveFile(d.CertFile(name)); err != nil {
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
	return key, process.WriteFile(d.KeyFile(name), data, 0o600)
}

func (d Dir) load(name string) (*x509.Certificate, crypto.Signer, error) {
	certs, err := cert.CertsFromFile(d.CertFile(name))
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(d.KeyFile(name))
	if err != nil {
		return nil, nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not a signing key", d.KeyFile(name))
	}
	return certs[0], signer, nil
}

// SigningKey creates the key pair that signs service account tokens: <name>.key and <name>.pub.
func (d Dir) SigningKey(name string) (private, public string, err error) {
	private, public = d.KeyFile(name), filepath.Join(string(d), name+".pub")
	if _, err := os.Stat(public); err == nil {
		return private, public, nil
	}
	key, err := d.newKey(name)
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
	return private, public, process.WriteFile(public, block.Bytes(), 0o644)
}
