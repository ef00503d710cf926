package registry

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	clocktesting "k8s.io/utils/clock/testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/test/registrytest"
)

// Encryption at rest covers writes by planners too; each object is bound to its key.
func TestEncryptionAtRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ["*.*"]
  providers:
  - aesgcm: {keys: [{name: one, secret: %s}]}
  - identity: {}
`, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))), 0o600))
	encrypted := func(o *apiserver.Options) { o.Recommended.Etcd.EncryptionProviderConfigFilepath = file }

	f := newFleet(t, 2, encrypted)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	f.start("mac-1", "acme", "first", 1)

	resp, err := f.etcd.Client.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	require.NoError(t, err)
	objects := 0
	for _, kv := range resp.Kvs {
		if bytes.HasPrefix(kv.Key, []byte("/registry/macrack.io/")) {
			continue // index keys hold no more than their names do
		}
		objects++
		assert.True(t, bytes.HasPrefix(kv.Value, []byte("k8s:enc:aesgcm:v1:one:")), "%s is in the clear: %q", kv.Key, kv.Value[:min(30, len(kv.Value))])
	}
	assert.GreaterOrEqual(t, objects, 9)
	lease, err := f.servers[1].Client(t, "acme").RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "build", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Len(t, lease.Status.Instances, 1)
}

// Objects are in etcd in protobuf, under a key that names their group.
func TestProtobufInEtcd(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	for _, key := range []string{
		"rack.macrack.io/macnodes/mac-1",
		"rack.macrack.io/macnodeclasses/base",
		"rack.macrack.io/macnodeleases/acme/build",
		"rack.macrack.io/auditrecords/acme/c07aaaaa0001-000000000001",
		"instance.macrack.io/instanceclasses/small",
		"image.macrack.io/macosimages/macos-26",
	} {
		resp, err := f.etcd.Client.Get(t.Context(), "/registry/"+key)
		require.NoError(t, err)
		if assert.Len(t, resp.Kvs, 1, key) {
			assert.True(t, bytes.HasPrefix(resp.Kvs[0].Value, []byte("k8s\x00")), key)
		}
	}
}

// A server is not ready if etcd can be read but not written.
func TestReadyzKnowsWhetherEtcdIsWritable(t *testing.T) {
	etcd := registrytest.StartEtcd(t)
	s := registrytest.StartServer(t, etcd, clocktesting.NewFakeClock(noon))
	readyz := func() (int, string) {
		resp, err := s.HTTPClient(t, "admin", "system:masters").Get(s.URL("/readyz?verbose"))
		require.NoError(t, err)
		defer resp.Body.Close()
		var body bytes.Buffer
		_, err = body.ReadFrom(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, body.String()
	}
	code, body := readyz()
	require.Equal(t, 200, code, body)
	require.Contains(t, body, "etcd-writable ok")

	before := etcd.Revision(t)
	began := time.Now()
	for range 200 {
		code, body = readyz()
		require.Equal(t, 200, code, body)
	}
	assert.LessOrEqual(t, etcd.Revision(t)-before, 10+2*int64(time.Since(began)/time.Second), "readiness checks must not write")

	etcd.RaiseNoSpace(t)
	require.Eventually(t, func() bool {
		code, body = readyz()
		return code == 500
	}, time.Minute, 50*time.Millisecond, "a result is cached for a second")
	assert.Contains(t, body, "etcd-writable failed")
	_, err := s.Client(t, "admin", "system:masters").RackV1alpha1().MacNodeClasses().Create(t.Context(), &rackv1alpha1.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "base"},
		Spec:       baseClass(),
	}, metav1.CreateOptions{})
	assert.ErrorContains(t, err, "the database is full (NOSPACE); the change may have been made")
	_, err = s.Client(t, "admin", "system:masters").RackV1alpha1().MacNodeClasses().List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err, "existing objects can be read")

	etcd.Disarm(t)
	require.Eventually(t, func() bool { code, _ := readyz(); return code == 200 }, 2*time.Minute, 50*time.Millisecond)
}
