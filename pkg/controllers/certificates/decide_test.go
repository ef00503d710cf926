package certificates

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestDecisions(t *testing.T) {
	const approved, denied, pending = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.RequestConditionType("")
	const token = "system:bootstrap:abcdef"
	key := newKey(t)
	now := metav1.NewTime(noon)
	leaving := macNode("leaving", metav1.ConditionFalse)
	leaving.DeletionTimestamp, leaving.Finalizers = &now, []string{"x"}
	macs := []*rackv1alpha1.MacNode{
		macNode("mac-1", metav1.ConditionFalse), macNode("mac-2", metav1.ConditionUnknown), macNode("live", metav1.ConditionTrue), macNode("mac-1.ber.example.com", metav1.ConditionFalse), leaving,
		macNode("absent", metav1.ConditionFalse),
	}
	usage := func(usages ...certificatesv1.KeyUsage) option {
		return func(_ *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.Usages = usages
		}
	}
	subject := func(cn string, o ...string) option {
		return func(x *x509.CertificateRequest, _ *certificatesv1.CertificateSigningRequest) {
			x.Subject = pkix.Name{CommonName: cn, Organization: o}
		}
	}
	names := func(names ...string) option {
		return func(x *x509.CertificateRequest, _ *certificatesv1.CertificateSigningRequest) { x.DNSNames = names }
	}
	uris := func(x *x509.CertificateRequest, _ *certificatesv1.CertificateSigningRequest) {
		x.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}}
	}
	signer := func(name string) option {
		return func(_ *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.SignerName = name
		}
	}
	for _, tt := range []struct {
		name    string
		node    string
		user    string
		groups  []string
		options []option
		want    certificatesv1.RequestConditionType
		says    string
	}{
		// Joining.
		{"a token for its Mac", "mac-1", token, tokenFor("mac-1"), nil, approved, "bootstrap token abcdef was created for Mac mac-1, serial number S-mac-1"},
		{"a token for its Mac, which has never been online", "mac-2", token, tokenFor("mac-2"), nil, approved, ""},
		{"a token for a Mac with dots in its name", "mac-1.ber.example.com", token, tokenFor("mac-1.ber.example.com"), nil, approved, ""},
		{"a token for two Macs", "mac-2", token, tokenFor("mac-1", "mac-2"), nil, approved, ""},
		{"with the usages of an RSA key", "mac-1", token, tokenFor("mac-1"), []option{usage(certificatesv1.UsageKeyEncipherment, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)}, approved, ""},
		{"another Mac's name", "mac-2", token, tokenFor("mac-1"), nil, denied, "bootstrap token abcdef is for Mac mac-1, not for mac-2; create one with `macrack-agent token create mac-2`"},
		{"a longer name", "mac-1.ber.example.com", token, tokenFor("mac-1"), nil, denied, "not for mac-1.ber.example.com"},
		{"a shorter name", "mac-1", token, tokenFor("mac-1.ber.example.com"), nil, denied, "not for mac-1"},
		{"no Mac's token", "mac-1", token, tokenGroups, nil, denied, "is for no Mac, not for mac-1"},
		{"a name that is not registered", "mac-3", token, tokenFor("mac-3"), nil, denied, `MacNode "mac-3" not found; an administrator must register`},
		{"a MacNode that is being deleted", "leaving", token, tokenFor("leaving"), nil, denied, "is being deleted"},
		{"a name in use", "live", token, tokenFor("live"), nil, denied, "name already in use; the agent of Mac live, serial number S-live, is online"},
		{"masters", "mac-1", token, tokenFor("mac-1"), []option{subject("system:node:mac-1", "system:masters")}, denied, "must be O=system:nodes"},
		{"masters too", "mac-1", token, tokenFor("mac-1"), []option{subject("system:node:mac-1", "system:nodes", "system:masters")}, denied, "must be O=system:nodes"},
		{"no Node", "mac-1", token, tokenFor("mac-1"), []option{subject("mac-1", "system:nodes")}, denied, "must be O=system:nodes,CN=system:node:<name>"},
		{"a server", "mac-1", token, tokenFor("mac-1"), []option{usage(certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth)}, denied, `usage "server auth" is not for a Node`},
		{"no usage", "mac-1", token, tokenFor("mac-1"), []option{usage(certificatesv1.UsageDigitalSignature)}, denied, `usage "client auth" is missing`},
		{"additional names", "mac-1", token, tokenFor("mac-1"), []option{names("kubernetes")}, denied, "no alternative names"},
		{"URIs", "mac-1", token, tokenFor("mac-1"), []option{uris}, denied, "no URIs"},
		{"a token with a forged group", "mac-1", token, []string{rules.BootstrapGroup, rules.BootstrapGroupOf("mac-1")}, nil, denied, "may not become Mac mac-1"},
		// Other users that request a Mac's certificate.
		{"a token of another kind", "mac-1", token, []string{tokensGroup, "system:bootstrappers:kubeadm:default-node-token"}, nil, denied, "bootstrap token abcdef is not for Macs"},
		{"a Linux machine's token", "linux-1", token, []string{tokensGroup, "system:bootstrappers:kubeadm:default-node-token"}, nil, pending, ""},
		{"a renewal", "live", "system:node:live", nodeGroups, nil, pending, ""},
		{"another Mac", "mac-2", "system:node:mac-1", nodeGroups, nil, denied, "Node mac-1 may not become Mac mac-2"},
		{"a user named like a Node", "mac-2", "system:node:mac-2", []string{"system:authenticated"}, nil, denied, `user "system:node:mac-2" may not become Mac mac-2`},
		{"a tenant", "mac-1", "acme", []string{"system:authenticated"}, nil, denied, `user "acme" may not become Mac mac-1; use a bootstrap token`},
		{"a tenant in the token's group", "mac-1", "acme", tokenFor("mac-1"), nil, denied, `user "acme" may not become Mac mac-1`},
		{"another signer", "mac-1", "acme", nil, []option{signer(certificatesv1.KubeAPIServerClientSignerName)}, pending, ""},
		// Serving.
		{"its name and address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving([]string{"mac-1"}, "10.0.0.1")}, approved, ""},
		{"a loopback address that others have too", "mac-2", "system:node:mac-2", nodeGroups, []option{serving([]string{"mac-2"}, "127.0.0.1")}, approved, ""},
		{"another's address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.2")}, denied, "IP address 10.0.0.2 does not belong to the Mac alone: it belongs to Node mac-2"},
		{"another's address, reported by its own agent", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.3")}, denied, "it belongs to Node linux-1"},
		{"an unassigned address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.1", "10.0.0.77")}, denied, "10.0.0.77 does not belong to the Mac alone: it is not an address of the Node"},
		{"an address reported as a host name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.9.9.9")}, denied, "it is not an address of the Node"},
		{"kube-apiserver's service", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.96.0.1")}, denied, "it belongs to kube-apiserver"},
		{"kube-apiserver's address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.100")}, denied, "it belongs to kube-apiserver"},
		{"kube-apiserver's load balancer", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.20")}, denied, "it belongs to kube-apiserver"},
		{"kube-apiserver's load balancer, by its name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.21")}, denied, "it belongs to kube-apiserver"},
		{"a Service", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.1", "10.96.0.10")}, denied, "it belongs to Service kube-system/kube-dns"},
		{"a Service's second address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "fd00::a")}, denied, "it belongs to Service kube-system/kube-dns"},
		{"a Service's load balancer", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.10")}, denied, "it belongs to Service kube-system/kube-dns"},
		{"a Service's requested load balancer address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.12")}, denied, "it belongs to Service kube-system/kube-dns"},
		{"a Service's external address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.11")}, denied, "it belongs to Service kube-system/kube-dns"},
		{"a loopback address, as kube-apiserver's", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "127.0.0.1")}, approved, ""},
		{"every address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "0.0.0.0")}, denied, "it is not the address of a host"},
		{"kube-apiserver's name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving([]string{"mac-1", "kubernetes.default.svc"})}, denied, `DNS name "kubernetes.default.svc" does not belong to the Mac; use "mac-1"`},
		{"another's name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving([]string{"mac-2"})}, denied, `DNS name "mac-2"`},
		{"no name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil)}, denied, "needs the Node's name"},
		{"a client's certificate too", "mac-1", "system:node:mac-1", nodeGroups, []option{serving([]string{"mac-1"}), usage(certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth)}, denied, `usage "client auth"`},
		{"as another Mac", "mac-2", "system:node:mac-1", nodeGroups, []option{serving([]string{"mac-2"}, "10.0.0.2")}, denied, `user "system:node:mac-1" may not serve as Mac mac-2`},
		{"a token that serves", "mac-1", token, tokenFor("mac-1"), []option{serving([]string{"mac-1"})}, denied, "may not serve as Mac mac-1"},
		{"a Linux machine that serves", "linux-1", "system:node:linux-1", nodeGroups, []option{serving([]string{"linux-1"})}, pending, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, []*certificatesv1.CertificateSigningRequest{newCSR(t, key, tt.node, tt.user, tt.groups, tt.options...)}, macs...)
			is, reason, message := c.decide(t, "csr-x")
			assert.Equal(t, tt.want, is, message)
			assert.Contains(t, message, tt.says)
			assert.Equal(t, tt.want != pending, reason != "")
		})
	}
}
