package credentials

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/cluster-bootstrap/util/tokens"
	"k8s.io/utils/clock"
)

const (
	// hashPrefix is the prefix of a CA public key hash, in the format of kubeadm.
	hashPrefix = "sha256:"
	// MaxClockSkew is the tolerated clock skew of the Mac. kube-controller-manager backdates its
	// certificates by the same time.
	MaxClockSkew = 5 * time.Minute
	// signingTime is the time limit for kube-controller-manager to sign cluster-info with a new
	// token.
	signingTime  = 20 * time.Second
	signingRetry = time.Second
	maxResponse  = 1 << 20
)

// Token is a bootstrap token. Its secret is never printed.
type Token struct{ ID, secret string }

// ParseToken reads a token of the form abcdef.0123456789abcdef.
func ParseToken(text string) (Token, error) {
	id, secret, err := tokens.ParseToken(strings.TrimSpace(text))
	if err != nil {
		// The library's error contains the token.
		return Token{}, errors.New("the token is not of the form abcdef.0123456789abcdef (6 and 16 characters, a-z and 0-9)")
	}
	return Token{ID: id, secret: secret}, nil
}

// Bearer returns the token in the form that the API server expects.
func (t Token) Bearer() string { return t.ID + "." + t.secret }

// String hides the secret.
func (t Token) String() string { return t.ID + ".<secret>" }

// GoString hides the secret.
func (t Token) GoString() string { return t.String() }

// Discovery finds a cluster and verifies its identity, like kubeadm.
type Discovery struct {
	// Server is the address of kube-apiserver, https://host:port.
	Server string
	Token  Token
	// CACertHashes are hashes of the public keys of the cluster's certificate authorities.
	CACertHashes []string
	// UnsafeSkipCAVerification trusts any server that knows the token.
	UnsafeSkipCAVerification bool
	Clock                    clock.Clock
}

// Discover returns a client configuration of the cluster, without credentials. It trusts the
// certificate authorities that match the hashes.
func (d *Discovery) Discover(ctx context.Context) (*rest.Config, error) {
	server, err := url.Parse(d.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" {
		return nil, fmt.Errorf("invalid server %q; use https://host:port", d.Server)
	}
	pins, err := parsePins(d.CACertHashes)
	if err != nil {
		return nil, err
	}
	if len(pins) == 0 && !d.UnsafeSkipCAVerification {
		return nil, errors.New("the hash of the cluster's CA is missing; `macrack-agent token create --print-join-command` prints it")
	}
	// The first connection is not verified; its data is trusted only after the token's signature
	// has been checked.
	info, err := d.clusterInfo(ctx, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	ca, err := trusted(info, pins)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	again, err := d.clusterInfo(ctx, &tls.Config{RootCAs: roots})
	if err != nil {
		return nil, explainTLS(d.Server, err)
	}
	if !bytes.Equal(info, again) {
		return nil, fmt.Errorf("cluster-info of %s differs over the verified connection; try again, and if the error persists, check for a man in the middle", d.Server)
	}
	return &rest.Config{Host: d.Server, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, nil
}

// clusterInfo returns the kubeconfig of the ConfigMap cluster-info, signed with the token. The
// signature of a new token takes a moment.
func (d *Discovery) clusterInfo(ctx context.Context, config *tls.Config) ([]byte, error) {
	config.MinVersion = tls.VersionTLS12
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment}, Timeout: dialTimeout}
	defer client.CloseIdleConnections()
	deadline := d.Clock.Now().Add(signingTime)
	for {
		object, err := d.fetch(ctx, client)
		if err != nil {
			return nil, err
		}
		kubeconfig := object.Data[bootstrapapi.KubeConfigKey]
		if kubeconfig == "" {
			return nil, fmt.Errorf("ConfigMap %s/%s of %s has no %s", object.Namespace, object.Name, d.Server, bootstrapapi.KubeConfigKey)
		}
		signature, signed := object.Data[bootstrapapi.JWSSignatureKeyPrefix+d.Token.ID]
		if signed {
			if !jws.DetachedTokenIsValid(signature, kubeconfig, d.Token.ID, d.Token.secret) {
				return nil, fmt.Errorf("cluster-info of %s is not signed with token %s; check the secret part of the token and the server's address", d.Server, d.Token.ID)
			}
			return []byte(kubeconfig), nil
		}
		if d.Clock.Now().After(deadline) {
			return nil, fmt.Errorf("%s does not know bootstrap token %s: it has expired, was deleted, or is not for signing; create a new one with `macrack-agent token create`", d.Server, d.Token.ID)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-d.Clock.After(signingRetry):
		}
	}
}

func (d *Discovery) fetch(ctx context.Context, client *http.Client) (*corev1.ConfigMap, error) {
	path := fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%s", metav1.NamespacePublic, bootstrapapi.ConfigMapClusterInfo)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(d.Server, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	asked := d.Clock.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s is not reachable; check the address, the network and the firewall of the Mac: %w", d.Server, err)
	}
	defer resp.Body.Close()
	if err := checkClock(resp.Header.Get("Date"), asked); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusForbidden, http.StatusUnauthorized:
		return nil, fmt.Errorf("%s does not serve ConfigMap %s in namespace %s to anonymous clients (%s); kubeadm clusters do, for others see docs/certificates.md",
			d.Server, bootstrapapi.ConfigMapClusterInfo, metav1.NamespacePublic, resp.Status)
	default:
		return nil, fmt.Errorf("%s responds with %s; check that it is kube-apiserver, and ready", d.Server, resp.Status)
	}
	object := &corev1.ConfigMap{}
	if err := json.Unmarshal(body, object); err != nil || object.Kind != "ConfigMap" {
		return nil, fmt.Errorf("the response of %s is not that of kube-apiserver; check the address", d.Server)
	}
	return object, nil
}

// checkClock compares the Mac's clock with the Date of a response.
func checkClock(date string, now time.Time) error {
	skew, ok := ClockSkew(date, now)
	if ok && skew.Abs() > MaxClockSkew {
		direction := "behind"
		if skew > 0 {
			direction = "ahead of"
		}
		return fmt.Errorf("this Mac's clock is %s %s the server's, and certificates would not be valid; set it (sudo sntp -sS time.apple.com)", skew.Abs().Round(time.Second), direction)
	}
	return nil
}

// ClockSkew returns the lead of now over the Date of an HTTP response.
func ClockSkew(date string, now time.Time) (time.Duration, bool) {
	there, err := http.ParseTime(date)
	return now.Sub(there), err == nil
}

func explainTLS(server string, err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %s is not from the token's cluster; check the address, and for a proxy that terminates TLS: %w", server, err)
	case errors.As(err, &host):
		return fmt.Errorf("the certificate of %s has another name; use one of its names as --server: %w", server, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of %s is not valid now; check this Mac's clock, and the server's certificate: %w", server, err)
	}
	return err
}

func parsePins(hashes []string) ([][]byte, error) {
	var pins [][]byte
	for _, text := range hashes {
		digits, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(text)), hashPrefix)
		pin, err := hex.DecodeString(digits)
		if !ok || err != nil || len(pin) != sha256.Size {
			return nil, fmt.Errorf("invalid CA hash %q; use the form %s<64 hexadecimal digits>", text, hashPrefix)
		}
		pins = append(pins, pin)
	}
	return pins, nil
}

// trusted returns the certificate authorities of a kubeconfig, in PEM, that match the pins. Without
// pins it returns all.
func trusted(kubeconfig []byte, pins [][]byte) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	var ca []byte
	var seen []string
	for _, cluster := range config.Clusters {
		certs, err := certutil.ParseCertsPEM(cluster.CertificateAuthorityData)
		if err != nil {
			return nil, fmt.Errorf("cluster-info has no certificate authority: %w", err)
		}
		for _, cert := range certs {
			seen = append(seen, Hash(cert))
			if len(pins) == 0 || vouched(cert, pins) {
				ca = append(ca, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: cert.Raw})...)
			}
		}
	}
	if len(ca) == 0 {
		return nil, fmt.Errorf("the cluster's CA has another hash (%s); check the hash and the server's address", strings.Join(seen, ", "))
	}
	return ca, nil
}

func vouched(cert *x509.Certificate, pins [][]byte) bool {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	for _, pin := range pins {
		if subtle.ConstantTimeCompare(sum[:], pin) == 1 {
			return true
		}
	}
	return false
}

// Hash returns the hash of a CA's public key, in the format of kubeadm.
func Hash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hashPrefix + hex.EncodeToString(sum[:])
}

// Hashes returns the hashes of the CAs that a client trusts.
func Hashes(config *rest.Config) ([]string, error) {
	ca := config.CAData
	if len(ca) == 0 {
		if config.CAFile == "" {
			return nil, errors.New("the kubeconfig names no certificate authority")
		}
		var err error
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return nil, err
		}
	}
	certs, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return nil, err
	}
	var hashes []string
	for _, cert := range certs {
		hashes = append(hashes, Hash(cert))
	}
	return hashes, nil
}
