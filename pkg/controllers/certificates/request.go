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
	// tokenUserPrefix begins the name of the user that a bootstrap token is.
	tokenUserPrefix = "system:bootstrap:"
	tokensGroup     = "system:bootstrappers"
)

// request is a CertificateSigningRequest that has been read.
type request struct {
	*certificatesv1.CertificateSigningRequest
	x509 *x509.CertificateRequest
	// node is the Node that the certificate would be of.
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

// token returns the ID of the bootstrap token that asks, or nothing if it is none.
func (r *request) token() string {
	id, ok := strings.CutPrefix(r.Spec.Username, tokenUserPrefix)
	if !ok || !slices.Contains(r.Spec.Groups, tokensGroup) {
		return ""
	}
	return id
}

// asker returns the name of the Node that asks, or nothing if it is none.
func (r *request) asker() string {
	if !slices.Contains(r.Spec.Groups, rules.NodesGroup) {
		return ""
	}
	return rules.NodeOfUser(r.Spec.Username)
}

// key identifies the key pair that the certificate would be of.
func (r *request) key() string { return string(r.x509.RawSubjectPublicKeyInfo) }

// check says what is wrong with the form of the request.
func (r *request) check() error {
	usage := certificatesv1.UsageClientAuth
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		usage = certificatesv1.UsageServerAuth
	} else if len(r.x509.DNSNames)+len(r.x509.IPAddresses) > 0 {
		return errors.New("a client certificate of a Node has no alternative names")
	}
	if len(r.x509.EmailAddresses)+len(r.x509.URIs) > 0 {
		return errors.New("a certificate of a Node has no mail addresses and no URIs")
	}
	if r.node == "" || !slices.Equal(r.x509.Subject.Organization, []string{rules.NodesGroup}) {
		return fmt.Errorf("the subject is %q, must be O=%s,CN=%s", r.x509.Subject, rules.NodesGroup, rules.NodeUser("<name>"))
	}
	for _, u := range r.Spec.Usages {
		if u != usage && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Errorf("usage %q is not for a Node: %s and %s are", u, certificatesv1.UsageDigitalSignature, usage)
		}
	}
	if !slices.Contains(r.Spec.Usages, usage) {
		return fmt.Errorf("usage %q is missing", usage)
	}
	return nil
}

// decided says whether somebody has approved or denied the request, or tried to sign it.
func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied)
}

func has(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}
