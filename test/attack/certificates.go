package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/transport"
)

// certificateOf returns the certificate of a user.
func (w *world) certificateOf(who string) (tls.Certificate, error) {
	config, err := w.cluster.RESTConfig(w.username(who), people[who].groups...)
	if err != nil {
		return tls.Certificate{}, err
	}
	t, err := config.TransportConfig()
	if err != nil {
		return tls.Certificate{}, err
	}
	tlsConfig, err := transport.TLSConfigFor(t)
	if err != nil {
		return tls.Certificate{}, err
	}
	if len(tlsConfig.Certificates) > 0 {
		return tlsConfig.Certificates[0], nil
	}
	pair, err := tlsConfig.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil {
		return tls.Certificate{}, err
	}
	return *pair, nil
}

// forgedCertificate returns a certificate for any name and groups, signed by an unknown authority.
func forgedCertificate(name string, groups ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// certificateRequest returns a request (PEM) for a certificate with names and IP addresses.
func certificateRequest(subject pkix.Name, names ...string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: subject}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// nodeSubject is the subject of a Node's certificate.
func nodeSubject(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}
