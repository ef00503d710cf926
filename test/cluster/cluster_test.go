package cluster_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/build"
)

// A control plane starts in a temporary folder, authenticates its clients, survives a crash of its
// API server, and leaves nothing behind.
func TestControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the first run on a machine builds Kubernetes
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Progress: testWriter{t}})
	require.NoError(t, err)
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			assert.NoError(t, c.Stop())
		}
	})

	admin := client(t, c, cluster.Admin)
	version, err := admin.Discovery().ServerVersion()
	require.NoError(t, err)
	assert.Equal(t, "v1.37.2", version.GitVersion)
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	_, err = client(t, c, "acme").CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "a user without a role must be refused, got %v", err)

	// kube-controller-manager works: every namespace gets its service account.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		_, err := admin.CoreV1().ServiceAccounts("kept").Get(ctx, "default", metav1.GetOptions{})
		assert.NoError(t, err)
	}, time.Minute, 200*time.Millisecond)

	t.Run("aggregation", func(t *testing.T) { testAggregation(t, c) })

	before := c.PID("kube-apiserver")
	require.NoError(t, c.Kill(ctx, "kube-apiserver"))
	assert.Zero(t, c.PID("kube-apiserver"))
	_, err = admin.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{})
	require.Error(t, err, "kube-apiserver was killed")
	for _, s := range c.Status(ctx) {
		if s.Name == "kube-apiserver" {
			assert.Error(t, s.Ready)
		}
		if s.Name == "etcd" {
			assert.NoError(t, s.Ready)
		}
	}

	require.NoError(t, c.Restart(ctx, "kube-apiserver"))
	assert.NotEqual(t, before, c.PID("kube-apiserver"))
	stdout, _, err := c.Kubectl(ctx, cluster.Admin, "get", "namespace", "kept", "-o", "name")
	require.NoError(t, err)
	assert.Equal(t, "namespace/kept\n", stdout)

	// Up keeps running components, and restarts the others.
	apiserver, etcd := c.PID("kube-apiserver"), c.PID("etcd")
	require.NoError(t, c.Kill(ctx, "kube-scheduler"))
	require.NoError(t, c.Up(ctx))
	assert.Equal(t, apiserver, c.PID("kube-apiserver"))
	assert.Equal(t, etcd, c.PID("etcd"))
	assert.NotZero(t, c.PID("kube-scheduler"))

	require.NoError(t, c.Stop())
	stopped = true
	for _, name := range c.Names() {
		assert.Zero(t, c.PID(name), name)
	}
	assert.NoDirExists(t, c.Dir())
}

// A stand-in for macrack-apiserver in this program gets the requests for macrack's groups. They
// come over TLS that kube-apiserver verifies, with the identity of the user, vouched for by the
// front proxy's certificate.
func testAggregation(t *testing.T, c *cluster.Cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	certFile, keyFile := c.ServingFiles()
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	users := make(chan string, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 || r.TLS.PeerCertificates[0].Subject.CommonName != "front-proxy-client" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		group, version, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/"), "/")
		switch version {
		case "v1alpha1":
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
				GroupVersion: group + "/v1alpha1",
				APIResources: []metav1.APIResource{{Name: "macnodeclasses", Kind: "MacNodeClass", Verbs: metav1.Verbs{"get"}}},
			})
		case "v1alpha1/macnodeclasses/one":
			users <- r.Header.Get("X-Remote-User")
			_, _ = io.WriteString(w, `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeClass","metadata":{"name":"one"}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that are meant to fail
	server.StartTLS()
	defer server.Close()
	port := server.Listener.Addr().(*net.TCPAddr).Port

	foreign, err := os.ReadFile(filepath.Join(c.Dir(), "pki", "cluster-ca.crt"))
	require.NoError(t, err)
	require.NoError(t, c.AggregateTo(ctx, port, foreign))
	short, cancelShort := context.WithTimeout(ctx, 5*time.Second)
	defer cancelShort()
	err = c.WaitForAPI(short)
	require.Error(t, err, "the server's certificate is not of this authority")
	assert.Contains(t, err.Error(), "certificate")

	require.NoError(t, c.AggregateTo(ctx, port, c.ServingCA()))
	require.NoError(t, c.WaitForAPI(ctx))
	_, _, err = c.Kubectl(ctx, cluster.Admin, "get", "--raw", "/apis/rack.macrack.io/v1alpha1/macnodeclasses/one")
	require.NoError(t, err)
	assert.Equal(t, "admin", <-users)
	_, _, err = c.Kubectl(ctx, "acme", "get", "--raw", "/apis/rack.macrack.io/v1alpha1/macnodeclasses/one")
	require.NoError(t, err)
	assert.Equal(t, "acme", <-users)
	_, _, err = c.Kubectl(ctx, "acme", "get", "--raw", "/apis/rack.macrack.io/v1alpha1/macnodes/mac-1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "Forbidden")

	testRoles(t, c)
	testDeployment(t, c)
}

// A cluster accepts artifacts/deploy, and its pods meet the restricted pod security standard of
// their namespace.
func testDeployment(t *testing.T, c *cluster.Cluster) {
	root, err := build.Root()
	require.NoError(t, err)
	deploy := filepath.Join(root, "artifacts", "deploy")
	stdout, stderr, err := c.Kubectl(t.Context(), cluster.Admin, "apply", "--dry-run=server", "--server-side", "--force-conflicts", "-k", deploy)
	require.NoError(t, err)
	assert.NotContains(t, stderr, "Warning")
	for _, object := range []string{
		"deployment.apps/macrack-apiserver", "deployment.apps/macrack-controllers", "deployment.apps/macrack-certificates",
		"statefulset.apps/macrack-etcd", "apiservice.apiregistration.k8s.io/v1alpha1.rack.macrack.io",
	} {
		assert.Contains(t, stdout, object+" serverside-applied")
	}
}

// kube-apiserver answers macrack-apiserver according to the roles of artifacts/deploy.
func testRoles(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	admin := client(t, c, cluster.Admin)
	_, err := admin.RbacV1().RoleBindings("kept").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "acme"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	const (
		rack, instance, image, config = "rack.macrack.io", "instance.macrack.io", "image.macrack.io", "config.macrack.io"
		controllers                   = "system:serviceaccount:macrack-system:macrack-controllers"
		node                          = "system:node:mac-1"
	)
	for _, test := range []struct {
		user, verb, group, resource, namespace string
		allowed                                bool
	}{
		{"acme", "create", rack, "macnodeleases", "kept", true},
		{"acme", "delete", rack, "macnodeleases", "kept", true},
		{"acme", "create", instance, "macosinstances", "kept", true},
		{"acme", "create", instance, "macosinstances/stop", "kept", true},
		{"acme", "list", rack, "auditrecords", "kept", true},
		{"acme", "list", rack, "usagereports", "kept", true},
		{"acme", "list", rack, "macnodeclasses", "", true},
		{"acme", "get", image, "macosimages", "", true},
		{"acme", "list", instance, "instanceclasses", "", true},
		{"acme", "create", rack, "macnodeleases", "default", false},
		{"acme", "list", rack, "macnodeleases", "", false},
		{"acme", "update", rack, "macnodeleases/status", "kept", false},
		{"acme", "create", rack, "macnodeleases/binding", "kept", false},
		{"acme", "create", rack, "macnodeleases/release", "kept", false},
		{"acme", "patch", instance, "macosinstances/status", "kept", false},
		{"acme", "create", rack, "auditrecords", "kept", false},
		{"acme", "delete", rack, "auditrecords", "kept", false},
		{"acme", "get", rack, "macnodes", "", false},
		{"acme", "list", rack, "compliancereports", "", false},
		{"acme", "list", rack, "usagereports", "", false},
		{"acme", "update", rack, "macnodeclasses", "", false},
		{"acme", "get", config, "rackconfigs", "", false},
		{node, "watch", rack, "macnodes", "", true},
		{node, "update", rack, "macnodes/status", "", true},
		{node, "update", rack, "macnodes", "", false},
		{node, "patch", instance, "macosinstances/status", "kept", true},
		{node, "update", instance, "macosinstances", "kept", false},
		{node, "create", rack, "auditrecords", "kept", true},
		{node, "list", rack, "macnodeleases", "", false},
		{node, "create", rack, "macnodeleases/release", "kept", false},
		{controllers, "create", rack, "macnodeleases/binding", "kept", true},
		{controllers, "create", rack, "macnodeleases/release", "kept", true},
		{controllers, "update", rack, "auditrecords", "kept", false},
		{controllers, "create", rack, "macnodeleases", "kept", false},
		{controllers, "create", instance, "macosinstances", "kept", false},
	} {
		name := fmt.Sprintf("%s %s %s.%s in %q", test.user, test.verb, test.resource, test.group, test.namespace)
		resource, subresource, _ := strings.Cut(test.resource, "/")
		user := client(t, c, test.user)
		require.EventuallyWithT(t, func(t *assert.CollectT) { // roles take a moment to be aggregated
			review, err := user.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: test.verb, Group: test.group, Resource: resource, Subresource: subresource, Namespace: test.namespace,
				}},
			}, metav1.CreateOptions{})
			if assert.NoError(t, err, name) {
				assert.Equal(t, test.allowed, review.Status.Allowed, name)
			}
		}, 2*time.Minute, 200*time.Millisecond)
	}
}

// A foreign program on a port of the cluster is named in the error, and is not touched.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	base := l.Addr().(*net.TCPAddr).Port - 1 // etcd's place in the block

	_, err = cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), PortBase: base, Progress: testWriter{t}})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "starting etcd: port")
	if _, procErr := os.Stat("/proc/net/tcp"); procErr == nil {
		assert.Contains(t, err.Error(), "cluster.test")
	}
}

func TestUnknownComponent(t *testing.T) {
	c, err := cluster.Open(cluster.Options{Dir: t.TempDir(), Progress: testWriter{t}})
	require.NoError(t, err)
	err = c.Kill(t.Context(), "kubelet")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "use one of etcd, kube-apiserver")
}

func client(t *testing.T, c *cluster.Cluster, user string) kubernetes.Interface {
	t.Helper()
	config, err := c.RESTConfig(user)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
