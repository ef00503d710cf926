package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"macrack.io/macrack/pkg/rules"
)

const (
	// tokenUserPrefix is the prefix of the user names of bootstrap tokens.
	tokenUserPrefix = "system:bootstrap:"
	tokensGroup     = "system:bootstrappers"
)

// request is a parsed CertificateSigningRequest.
type request struct {
	*certificatesv1.CertificateSigningRequest
	x509 *x509.CertificateRequest
	// node is the Node that the certificate is for.
	node string
}

// parse returns nil if the request is not for the certificate of a Node.
func parse(csr *certificatesv1.CertificateSigningRequest) (*request, error) {
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
	default:
		return nil, nil
	}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return nil, errors.New("spec.request is not PEM")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	return &request{CertificateSigningRequest: csr, x509: parsed, node: rules.NodeOfUser(parsed.Subject.CommonName)}, nil
}

// token returns the ID of the requesting bootstrap token, or "" if the user is not a bootstrap
// token.
func (r *request) token() string {
	id, ok := strings.CutPrefix(r.Spec.Username, tokenUserPrefix)
	if !ok || !slices.Contains(r.Spec.Groups, tokensGroup) {
		return ""
	}
	return id
}

// requestingNode returns the name of the requesting Node, or "" if the user is not a Node.
func (r *request) requestingNode() string {
	if !slices.Contains(r.Spec.Groups, rules.NodesGroup) {
		return ""
	}
	return rules.NodeOfUser(r.Spec.Username)
}

// key identifies the key pair of the certificate.
func (r *request) key() string { return string(r.x509.RawSubjectPublicKeyInfo) }

// check returns an error if the request is malformed.
func (r *request) check() error {
	usage := certificatesv1.UsageClientAuth
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		usage = certificatesv1.UsageServerAuth
	} else if len(r.x509.DNSNames)+len(r.x509.IPAddresses) > 0 {
		return errors.New("a client certificate of a Node must have no alternative names")
	}
	if len(r.x509.EmailAddresses)+len(r.x509.URIs) > 0 {
		return errors.New("a certificate of a Node must have no mail addresses and no URIs")
	}
	if r.node == "" || !slices.Equal(r.x509.Subject.Organization, []string{rules.NodesGroup}) {
		return fmt.Errorf("the subject is %q; it must be O=%s,CN=%s", r.x509.Subject, rules.NodesGroup, rules.NodeUser("<name>"))
	}
	for _, u := range r.Spec.Usages {
		if u != usage && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Errorf("usage %q is not for a Node; use %s and %s", u, certificatesv1.UsageDigitalSignature, usage)
		}
	}
	if !slices.Contains(r.Spec.Usages, usage) {
		return fmt.Errorf("usage %q is missing", usage)
	}
	return nil
}

// decided reports whether the request has been approved or denied, or has got a certificate.
func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied)
}

func has(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}
