package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"macrack.io/macrack/test/cluster/process"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/etcd"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

const etcdMember = "macrack-etcd-1"

// When etcd is killed, requests fail within seconds and virtual machines continue to run. When etcd
// is back, the former state is restored without intervention.
func TestEtcdIsKilled(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "outage")
	before := startInstance(t, acme, "vm", "outage")
	lease := getLease(t, acme, "outage")

	t.Cleanup(func() {
		if tb.Cluster.PID(etcdMember) == 0 {
			assert.NoError(t, tb.Cluster.Restart(context.Background(), etcdMember))
		}
	})
	require.NoError(t, tb.Cluster.Kill(t.Context(), etcdMember))
	t.Run("away", testEtcdIsAway)
	require.NoError(t, tb.Cluster.Restart(t.Context(), etcdMember))

	eventually(t, func(c *assert.CollectT) {
		now, err := client(t, acme).RackV1alpha1().MacNodeLeases(acme).Get(t.Context(), "outage", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, lease.Status, now.Status)
		assert.Nil(c, now.DeletionTimestamp, "the refused deletion has not happened")
		code, body, err := tb.APIServer.Ready(t.Context())
		require.NoError(c, err)
		assert.Equal(c, http.StatusOK, code, body)
	})
	_, err := client(t, acme).RackV1alpha1().MacNodeLeases(acme).Get(t.Context(), "during", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	after, err := client(t, acme).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), "vm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.Status.StartedAt, after.Status.StartedAt)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, after.Status.Phase, "silence alone fails no instance")
	another := startInstance(t, acme, "vm2", "outage") // controllers and agents recover by themselves
	assert.Equal(t, lease.Status.SerialNumber, another.Status.SerialNumber)
	assertCompliant(t)
}

func testEtcdIsAway(t *testing.T) {
	for name, tt := range map[string]struct {
		user, method, path, body string
	}{
		"create, through kube-apiserver": {acme, http.MethodPost, leasesPath, leaseJSON("during", "")},
		"create, direct":                 {"direct-acme", http.MethodPost, leasesPath, leaseJSON("during", "")},
		"change":                         {"direct-acme", http.MethodDelete, leasesPath + "/outage", ""},
		"consistent read":                {"direct-acme", http.MethodGet, leasesPath + "/outage", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := tb.RESTConfig(tt.user)
			require.NoError(t, err)
			c, err := versioned.NewForConfig(config)
			require.NoError(t, err)
			began := time.Now()
			var code int
			result := c.RackV1alpha1().RESTClient().Verb(tt.method).AbsPath(tt.path).SetHeader("Content-Type", "application/json").Body([]byte(tt.body)).MaxRetries(0).Do(t.Context())
			result.StatusCode(&code)
			assert.Equal(t, http.StatusServiceUnavailable, code, result.Error())
			assert.ErrorContains(t, result.Error(), "etcd")
			assert.Less(t, time.Since(began), 30*time.Second, "told late")
		})
	}
	t.Run("not ready", func(t *testing.T) {
		t.Parallel()
		eventually(t, func(c *assert.CollectT) {
			code, body, err := tb.APIServer.Ready(t.Context())
			require.NoError(c, err)
			assert.Equal(c, http.StatusInternalServerError, code)
			assert.Contains(c, body, "[-]etcd")
		})
	})
}

// When etcd is full, the server reports it, is not ready, and has lost no acknowledged write. It
// works again when etcd has room.
func TestEtcdIsFull(t *testing.T) {
	const quota, size = 8 << 20, 60 << 10 // at most 64 KiB of annotations are accepted
	full := startEtcd(t, quota)
	listener, err := process.Listen(0)
	require.NoError(t, err)
	server, err := tb.StartAPIServer(listener, cluster.EtcdAccess{Servers: full.Endpoints()})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	ready := func(c *assert.CollectT, want int) string {
		code, body, err := server.Ready(t.Context())
		require.NoError(c, err)
		assert.Equal(c, want, code, body)
		return body
	}
	eventually(t, func(c *assert.CollectT) { ready(c, http.StatusOK) })
	config, err := server.RESTConfig(admin)
	require.NoError(t, err)
	admin, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	classes := admin.InstanceV1alpha1().InstanceClasses()

	acknowledged := map[string]string{}
	class := func(n int) *instancev1alpha1.InstanceClass {
		note := make([]byte, size)
		for i := range note {
			note[i] = 'a' + byte(rand.IntN(26)) // does not compress
		}
		return &instancev1alpha1.InstanceClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class-%d", n), Annotations: map[string]string{"note": string(note)}},
			Spec: instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{
				CPU: scalar.MustParse("1"), Memory: scalar.MustParse("4Gi"), Storage: scalar.MustParse("64Gi")}},
		}
	}
	for n := range 5 {
		created, err := classes.Create(t.Context(), class(n), metav1.CreateOptions{})
		require.NoError(t, err)
		acknowledged[created.Name] = created.Annotations["note"]
	}
	var refusal error
	var refused *instancev1alpha1.InstanceClass
	for n := 0; refusal == nil; n++ {
		require.Less(t, n, 2*quota/size, "the quota is never reached")
		next := class(n % 5)
		updated, err := classes.Update(t.Context(), next, metav1.UpdateOptions{})
		if refusal = err; err == nil {
			acknowledged[updated.Name] = updated.Annotations["note"]
		} else {
			refused = next
		}
	}
	assert.ErrorContains(t, refusal, "NOSPACE")
	assert.ErrorContains(t, refusal, "full")
	assert.ErrorContains(t, refusal, "the change may have been made")
	if found, err := classes.Get(t.Context(), refused.Name, metav1.GetOptions{}); assert.NoError(t, err) && found.Annotations["note"] == refused.Annotations["note"] {
		acknowledged[refused.Name] = refused.Annotations["note"] // it was created: etcd became full with it
	}
	eventually(t, func(c *assert.CollectT) {
		assert.Contains(c, ready(c, http.StatusInternalServerError), "[-]etcd-writable")
	})
	assertKept := func() {
		list, err := classes.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, "existing objects can be read")
		assert.Len(t, list.Items, len(acknowledged))
		for _, item := range list.Items {
			assert.True(t, acknowledged[item.Name] == item.Annotations["note"], "%s differs from the acknowledged object", item.Name)
		}
	}
	assertKept()

	// Follow the instructions of the message to the administrator.
	status, err := full.Status(t.Context(), full.Endpoints()[0])
	require.NoError(t, err)
	_, err = full.Compact(t.Context(), status.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = full.Defragment(t.Context(), full.Endpoints()[0])
	require.NoError(t, err)
	_, err = full.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}) // all
	require.NoError(t, err)

	eventually(t, func(c *assert.CollectT) { ready(c, http.StatusOK) })
	assertKept()
	updated, err := classes.Update(t.Context(), class(0), metav1.UpdateOptions{})
	require.NoError(t, err)
	acknowledged[updated.Name] = updated.Annotations["note"]
	assertKept()
}

// startEtcd starts an etcd with a quota in bytes, and returns a client of it.
func startEtcd(t *testing.T, quota int64) *clientv3.Client {
	t.Helper()
	running, err := etcd.Member{Dir: t.TempDir(), Quota: quota}.Start()
	require.NoError(t, err)
	t.Cleanup(running.Close)
	c, err := etcd.Connect(cluster.EtcdAccess{Servers: []string{"http://" + running.Clients[0].Addr().String()}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
