package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/rules"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

type option func(*x509.CertificateRequest, *certificatesv1.CertificateSigningRequest)

func newCSR(t *testing.T, key *ecdsa.PrivateKey, node, user string, groups []string, options ...option) *certificatesv1.CertificateSigningRequest {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: rules.NodeUser(node), Organization: []string{rules.NodesGroup}}}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-x", UID: "uid-x", ResourceVersion: "1", CreationTimestamp: metav1.NewTime(noon)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Username:   user, Groups: groups,
		},
	}
	for _, o := range options {
		o(template, csr)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(t, err)
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return csr
}

func serving(names []string, ips ...string) option {
	return func(x *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest) {
		csr.Spec.SignerName = certificatesv1.KubeletServingSignerName
		csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
		x.DNSNames = names
		for _, ip := range ips {
			x.IPAddresses = append(x.IPAddresses, net.ParseIP(ip))
		}
	}
}

func named(name string) option {
	return func(_ *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest) {
		csr.Name, csr.UID = name, types.UID("uid-"+name)
	}
}

var (
	tokenGroups = []string{"system:authenticated", tokensGroup, rules.BootstrapGroup}
	nodeGroups  = []string{"system:authenticated", rules.NodesGroup}
)

// tokenFor returns the groups of a bootstrap token for Macs.
func tokenFor(macs ...string) []string {
	groups := append([]string(nil), tokenGroups...)
	for _, mac := range macs {
		groups = append(groups, rules.BootstrapGroupOf(mac))
	}
	return groups
}

func macNode(name string, ready metav1.ConditionStatus) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: "S-" + name},
		Status:     rackv1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Type: rackv1alpha1.MacNodeReady, Status: ready}}},
	}
}

func aNode(name string, ips ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	// A host name must not count, because the agent chooses it.
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "kubernetes.default.svc"}, {Type: corev1.NodeInternalDNS, Address: "10.9.9.9"}}
	for _, ip := range ips {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return node
}

const clusterInfo = `apiVersion: v1
kind: Config
clusters:
- name: ""
  cluster: {server: "https://203.0.113.20:6443"}
- name: named
  cluster: {server: "https://api.example.com:6443"}
- name: dev
  cluster: {server: "https://127.0.0.1:6443"}
`

// cluster runs the controller's reconciler against the objects of a cluster.
type cluster struct {
	*reconciler
	core *kubefake.Clientset
}

func newCluster(t *testing.T, csrs []*certificatesv1.CertificateSigningRequest, macs ...*rackv1alpha1.MacNode) *cluster {
	core, ours := kubefake.NewClientset(), fake.NewSimpleClientset()
	for _, csr := range csrs {
		require.NoError(t, core.Tracker().Add(csr))
	}
	for _, mac := range macs {
		require.NoError(t, ours.Tracker().Add(mac))
	}
	for _, obj := range []runtime.Object{
		aNode("mac-1", "10.0.0.1", "127.0.0.1", "10.96.0.1", "10.0.0.100", "0.0.0.0", "10.0.0.3",
			"10.96.0.10", "fd00::a", "203.0.113.10", "203.0.113.11", "203.0.113.12", "203.0.113.20", "203.0.113.21"), aNode("mac-2", "10.0.0.2", "127.0.0.1"), aNode("linux-1", "10.0.0.3"),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: macsBinding}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "kube-dns", Namespace: "kube-system"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd00::a"}, ExternalIPs: []string{"203.0.113.11"}, LoadBalancerIP: "203.0.113.12",
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "lb"}, {IP: "203.0.113.10"}}}},
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "macrack-etcd", Namespace: "macrack-system"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info", Namespace: "kube-public"}, Data: map[string]string{"kubeconfig": clusterInfo}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.100"}}},
		},
	} {
		require.NoError(t, core.Tracker().Add(obj))
	}
	version := 1
	core.PrependReactor("update", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		assert.Equal(t, "approval", action.GetSubresource())
		version++
		action.(clienttesting.UpdateAction).GetObject().(*certificatesv1.CertificateSigningRequest).ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
	deps, err := shared.New(ours, core, clocktesting.NewFakeClock(noon), record.NewFakeRecorder(10))
	require.NoError(t, err)
	// New creates the index. Its queue does not run, so that a test decides what is reconciled and
	// when.
	_, err = New(deps)
	require.NoError(t, err)
	require.NoError(t, deps.Start(t.Context()))
	c := &cluster{newReconciler(deps), core}
	c.lookup = func(_ context.Context, name string) ([]string, error) {
		assert.Equal(t, "api.example.com", name)
		return []string{"203.0.113.21"}, nil
	}
	return c
}

// decide reconciles a request and returns the outcome.
func (c *cluster) decide(t *testing.T, name string) (certificatesv1.RequestConditionType, string, string) {
	_, err := c.reconcile(t.Context(), name)
	require.NoError(t, err)
	csr, err := c.core.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	if len(csr.Status.Conditions) == 0 {
		return "", "", ""
	}
	require.Len(t, csr.Status.Conditions, 1)
	condition := csr.Status.Conditions[0]
	assert.Equal(t, corev1.ConditionTrue, condition.Status)
	return condition.Type, condition.Reason, condition.Message
}

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
		{"another's address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.2")}, denied, "IP address 10.0.0.2 does not belong to the Mac alone: Node mac-2 has it"},
		{"another's address, reported by its own agent", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.3")}, denied, "Node linux-1 has it"},
		{"an unassigned address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.1", "10.0.0.77")}, denied, "10.0.0.77 does not belong to the Mac alone: the Node does not have it"},
		{"an address reported as a host name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.9.9.9")}, denied, "the Node does not have it"},
		{"kube-apiserver's service", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.96.0.1")}, denied, "kube-apiserver has it"},
		{"kube-apiserver's address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.100")}, denied, "kube-apiserver has it"},
		{"kube-apiserver's load balancer", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.20")}, denied, "kube-apiserver has it"},
		{"kube-apiserver's load balancer, by its name", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.21")}, denied, "kube-apiserver has it"},
		{"a Service", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "10.0.0.1", "10.96.0.10")}, denied, "Service kube-system/kube-dns has it"},
		{"a Service's second address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "fd00::a")}, denied, "Service kube-system/kube-dns has it"},
		{"a Service's load balancer", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.10")}, denied, "Service kube-system/kube-dns has it"},
		{"a Service's requested load balancer address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.12")}, denied, "Service kube-system/kube-dns has it"},
		{"a Service's external address", "mac-1", "system:node:mac-1", nodeGroups, []option{serving(nil, "203.0.113.11")}, denied, "Service kube-system/kube-dns has it"},
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

func TestATokenIsForOneJoining(t *testing.T) {
	key, groups := newKey(t), tokenFor("mac-1")
	ask := func(name string, key *ecdsa.PrivateKey, user string) *certificatesv1.CertificateSigningRequest {
		return newCSR(t, key, "mac-1", user, groups, named(name))
	}
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
		ask("first", key, "system:bootstrap:abcdef"), ask("second", newKey(t), "system:bootstrap:abcdef"),
		ask("again", key, "system:bootstrap:abcdef"), ask("another", newKey(t), "system:bootstrap:fedcba"),
	}, macNode("mac-1", metav1.ConditionFalse))
	is, _, _ := c.decide(t, "first")
	require.Equal(t, certificatesv1.CertificateApproved, is)
	// The second request comes before any informer can know of the first.
	is, reason, message := c.decide(t, "second")
	assert.Equal(t, certificatesv1.CertificateDenied, is)
	assert.Equal(t, reasonTokenSpent, reason)
	assert.Contains(t, message, "bootstrap token abcdef has been used at 12:00:00Z")
	is, _, message = c.decide(t, "again")
	assert.Equal(t, certificatesv1.CertificateApproved, is, "the same Mac requests again after a crash: %s", message)
	is, _, message = c.decide(t, "another")
	assert.Equal(t, certificatesv1.CertificateApproved, is, "an administrator has created another token: %s", message)
}

// agents returns the users that the admission policies know as Macs.
func (c *cluster) agents(t *testing.T) (users []string) {
	binding, err := c.core.RbacV1().ClusterRoleBindings().Get(t.Context(), macsBinding, metav1.GetOptions{})
	require.NoError(t, err)
	for _, subject := range binding.Subjects {
		assert.Equal(t, rbacv1.Subject{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: subject.Name}, subject)
		users = append(users, subject.Name)
	}
	return users
}

func TestAMacIsKnownAsOneBeforeItHasACertificate(t *testing.T) {
	mac := macNode("mac-1", metav1.ConditionFalse)
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
		newCSR(t, newKey(t), "mac-2", "system:bootstrap:abcdef", tokenFor("mac-1"), named("denied")),
		newCSR(t, newKey(t), "mac-1", "system:bootstrap:abcdef", tokenFor("mac-1"), named("first")),
		newCSR(t, newKey(t), "mac-1", "system:bootstrap:fedcba", tokenFor("mac-1"), named("second")),
	}, mac)
	is, _, _ := c.decide(t, "denied")
	require.Equal(t, certificatesv1.CertificateDenied, is)
	assert.Empty(t, c.agents(t))
	is, _, _ = c.decide(t, "first")
	require.Equal(t, certificatesv1.CertificateApproved, is)
	assert.Equal(t, []string{"system:node:mac-1"}, c.agents(t))

	require.NoError(t, c.core.RbacV1().ClusterRoleBindings().Delete(t.Context(), macsBinding, metav1.DeleteOptions{}))
	_, err := c.reconcile(t.Context(), "second")
	require.ErrorContains(t, err, "apply artifacts/deploy")
	csr, err := c.core.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "second", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, csr.Status.Conditions, "approved although the policies cannot distinguish it from a Linux machine")
}

func TestMacsAreKnown(t *testing.T) {
	c := newCluster(t, nil)
	m := &macs{c.core}
	writes := 0
	var failure error
	c.core.PrependReactor("update", "clusterrolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		return failure != nil, nil, failure
	})
	require.NoError(t, m.name(t.Context(), "mac-2", "mac-1"))
	require.NoError(t, m.name(t.Context(), "mac-1", "mac-3"))
	require.NoError(t, m.name(t.Context(), "mac-2"))
	assert.Equal(t, []string{"system:node:mac-1", "system:node:mac-2", "system:node:mac-3"}, c.agents(t), "the user of a deleted MacNode is kept")
	assert.Equal(t, 2, writes, "no write without a change")
	failure = apierrors.NewConflict(rbacv1.Resource("clusterrolebindings"), macsBinding, nil)
	assert.ErrorIs(t, m.name(t.Context(), "mac-4"), failure)
}

func TestDecidedRequestsAreLeftAlone(t *testing.T) {
	csr := newCSR(t, newKey(t), "mac-2", "system:bootstrap:abcdef", tokenFor("mac-1"))
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand"}}
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{csr}, macNode("mac-2", metav1.ConditionFalse))
	is, reason, _ := c.decide(t, "csr-x")
	assert.Equal(t, certificatesv1.CertificateApproved, is)
	assert.Equal(t, "ByHand", reason)
	_, err := c.reconcile(t.Context(), "gone")
	assert.NoError(t, err)
}

func TestServingWhenKubeAPIServersPlaceIsNotKnown(t *testing.T) {
	for name, spoil := range map[string]func(*cluster){
		"no cluster-info": func(c *cluster) {
			require.NoError(t, c.core.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "kube-public", "cluster-info"))
		},
		"a name that does not resolve": func(c *cluster) {
			c.lookup = func(ctx context.Context, _ string) ([]string, error) {
				_, bounded := ctx.Deadline()
				assert.True(t, bounded, "the lookup has no deadline")
				return nil, errors.New("no such host")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
				newCSR(t, newKey(t), "mac-1", "system:node:mac-1", nodeGroups, serving([]string{"mac-1"}, "10.0.0.1"), named("own")),
				newCSR(t, newKey(t), "mac-1", "system:node:mac-1", nodeGroups, serving(nil, "10.96.0.10"), named("service")),
			}, macNode("mac-1", metav1.ConditionTrue))
			spoil(c)
			is, _, message := c.decide(t, "own")
			assert.Equal(t, certificatesv1.CertificateApproved, is, message)
			is, _, _ = c.decide(t, "service")
			assert.Equal(t, certificatesv1.CertificateDenied, is)
		})
	}
}

func TestServingWaitsForTheNode(t *testing.T) {
	csr := newCSR(t, newKey(t), "mac-9", "system:node:mac-9", nodeGroups, serving([]string{"mac-9"}))
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{csr}, macNode("mac-9", metav1.ConditionFalse))
	due, err := c.reconcile(t.Context(), "csr-x")
	require.NoError(t, err)
	assert.Equal(t, noon.Add(registering), due)
	is, _, _ := c.decide(t, "csr-x")
	assert.Empty(t, is)
}
