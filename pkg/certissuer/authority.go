// Package certissuer issues the certificates of macrack-apiserver and its etcd, renews them, and
// makes the APIServices trust them.
package certissuer

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// An authority gets a successor two years before it expires. The successor signs after half of the
// remaining time. etcd and macrack-apiserver read the authorities of etcd only when they start, so
// each of their pods must restart once in that year.
const (
	authorityLifetime  = 10 * 365 * 24 * time.Hour
	authorityRenewal   = 2 * 365 * 24 * time.Hour // before the authority expires
	certificateRenewal = 30 * 24 * time.Hour      // before the certificate expires
	// CertificateLifetime is the lifetime of a certificate that an authority issues.
	CertificateLifetime = 90 * 24 * time.Hour

	clockSkew = time.Hour
)

// pair is a certificate and its private key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// authority is a certificate authority through its generations.
type authority struct {
	name    string
	signing pair
	next    *pair               // is trusted already, and signs later
	trusted []*x509.Certificate // all generations that have not expired, the newest first
}

// newAuthority returns an authority with its first generation.
func newAuthority(name string, now time.Time) (*authority, error) {
	signing, err := newGeneration(name, now)
	if err != nil {
		return nil, err
	}
	return &authority{name: name, signing: signing, trusted: []*x509.Certificate{signing.cert}}, nil
}

func newGeneration(name string, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name, SerialNumber: now.UTC().Format("20060102150405")},
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	c, err := sign(template, template, key.Public(), key, now)
	return pair{c, key}, err
}

// advance makes the steps of the rotation that are due.
func (a *authority) advance(now time.Time) error {
	left := a.signing.cert.NotAfter.Sub(now)
	if left < authorityRenewal && a.next == nil {
		next, err := newGeneration(a.name, now)
		if err != nil {
			return err
		}
		a.next = &next
		a.trusted = slices.Insert(a.trusted, 0, next.cert)
	}
	if a.next != nil && left < a.signing.cert.NotAfter.Sub(a.next.cert.NotBefore)/2 {
		a.signing, a.next = *a.next, nil
	}
	a.trusted = slices.DeleteFunc(a.trusted, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	return nil
}

// request describes a certificate.
type request struct {
	commonName string
	dnsNames   []string
	server     bool // otherwise only a client
}

// issue returns a certificate and its key in PEM.
func (a *authority) issue(r request, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: r.commonName},
		DNSNames:              r.dnsNames,
		NotAfter:              now.Add(CertificateLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if r.server {
		// A member of etcd is a client of the others too.
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	c, err := sign(template, a.signing.cert, key.Public(), a.signing.key, now)
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, err
	}
	certPEM, err = cert.EncodeCertificates(c)
	return certPEM, keyPEM, err
}

// due returns why a certificate must be issued again, or "".
func (a *authority) due(c *x509.Certificate, r request, now time.Time) string {
	switch {
	case c.NotAfter.Sub(now) < certificateRenewal:
		return "it expires " + c.NotAfter.Format(time.RFC3339)
	case c.CheckSignatureFrom(a.signing.cert) != nil:
		return "the authority has changed"
	case c.Subject.CommonName != r.commonName, !slices.Equal(c.DNSNames, r.dnsNames):
		return "its names have changed"
	}
	return ""
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-clockSkew)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// Keys of the Secret of an authority, beside those of type kubernetes.io/tls.
const (
	caKey       = "ca.crt"
	nextCertKey = "next.crt"
	nextKeyKey  = "next.key"
	certKey     = "tls.crt"
	keyKey      = "tls.key"
)

// decodeAuthority returns the authority in the data of a Secret.
func decodeAuthority(name string, data map[string][]byte) (*authority, error) {
	a := &authority{name: name}
	signing, err := decodePair(data[certKey], data[keyKey])
	if err != nil {
		return nil, err
	}
	a.signing = *signing
	if len(data[nextCertKey]) > 0 {
		if a.next, err = decodePair(data[nextCertKey], data[nextKeyKey]); err != nil {
			return nil, fmt.Errorf("successor: %w", err)
		}
	}
	a.trusted, err = cert.ParseCertsPEM(data[caKey])
	return a, err
}

func (a *authority) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	pairs := map[[2]string]*pair{{certKey, keyKey}: &a.signing, {nextCertKey, nextKeyKey}: a.next}
	for names, p := range pairs {
		if p == nil {
			continue
		}
		key, err := keyutil.MarshalPrivateKeyToPEM(p.key)
		if err != nil {
			return nil, err
		}
		c, err := cert.EncodeCertificates(p.cert)
		if err != nil {
			return nil, err
		}
		data[names[0]], data[names[1]] = c, key
	}
	var err error
	data[caKey], err = cert.EncodeCertificates(a.trusted...)
	return data, err
}

func decodePair(certPEM, keyPEM []byte) (*pair, error) {
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("not a signing key")
	}
	have, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(have, certs[0].RawSubjectPublicKeyInfo) {
		return nil, errors.New("the certificate is not of this key")
	}
	return &pair{certs[0], signer}, nil
}
