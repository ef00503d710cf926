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
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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
	core      *kubefake.Clientset
	addresses fakeResolver
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
	addresses := fakeResolver{"api.example.com": "203.0.113.21"}
	return &cluster{newReconciler(deps, addresses), core, addresses}
}

// fakeResolver has the address of each name.
type fakeResolver map[string]string

func (r fakeResolver) LookupHost(ctx context.Context, name string) ([]string, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		panic("the lookup has no deadline")
	}
	if address, found := r[name]; found {
		return []string{address}, nil
	}
	return nil, errors.New("no such host")
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
