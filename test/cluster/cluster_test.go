package cluster_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/test/cluster"
)

// A control plane starts in a temporary folder, checks who asks, survives the death of its API server, and leaves nothing behind.
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

	// kube-controller-manager is at work: every namespace gets its service account.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		_, err := admin.CoreV1().ServiceAccounts("kept").Get(ctx, "default", metav1.GetOptions{})
		assert.NoError(t, err)
	}, time.Minute, 200*time.Millisecond)

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

	// Up leaves alone what runs, and starts again what does not.
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

// Somebody else's program on a port of ours is named, and is not touched.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	base := l.Addr().(*net.TCPAddr).Port - 1 // etcd's place in the block

	_, err = cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), PortBase: base, Progress: testWriter{t}})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "etcd cannot start: port")
	if _, procErr := os.Stat("/proc/net/tcp"); procErr == nil {
		assert.Contains(t, err.Error(), "cluster.test")
	}
}

func TestUnknownComponent(t *testing.T) {
	c, err := cluster.Open(cluster.Options{Dir: t.TempDir(), Progress: testWriter{t}})
	require.NoError(t, err)
	err = c.Kill(t.Context(), "kubelet")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "there are etcd, kube-apiserver")
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
