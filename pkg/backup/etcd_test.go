package backup

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/test/cluster/pki"
)

// etcdServer is an etcd that asks for the certificates of its clients.
type etcdServer struct {
	etcd   Etcd
	client *clientv3.Client
	pki    pki.Dir
}

// startEtcd runs an etcd of one member on a data directory, which may exist.
func startEtcd(t *testing.T, dir string) *etcdServer {
	t.Helper()
	certificates := pki.Dir(t.TempDir())
	authority, err := certificates.Authority("ca")
	require.NoError(t, err)
	require.NoError(t, authority.Server("server", "localhost"))
	require.NoError(t, authority.Client("client", "macrack"))

	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync = dir, true
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ClientTLSInfo = transport.TLSInfo{
		CertFile: certificates.CertFile("server"), KeyFile: certificates.KeyFile("server"), TrustedCAFile: certificates.CertFile("ca"), ClientCertAuth: true,
	}
	server, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready")
	}
	e := &etcdServer{pki: certificates, etcd: Etcd{
		Servers: []string{"https://" + server.Clients[0].Addr().String()},
		CAFile:  certificates.CertFile("ca"), CertFile: certificates.CertFile("client"), KeyFile: certificates.KeyFile("client"),
	}}
	tls, err := (transport.TLSInfo{TrustedCAFile: e.etcd.CAFile, CertFile: e.etcd.CertFile, KeyFile: e.etcd.KeyFile}).ClientConfig()
	require.NoError(t, err)
	e.client, err = clientv3.New(clientv3.Config{Endpoints: e.etcd.Servers, TLS: tls, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.client.Close() })
	return e
}

// The drill of docs/backup.md: what is saved can be restored.
func TestRestore(t *testing.T) {
	server := startEtcd(t, filepath.Join(t.TempDir(), "etcd"))
	_, err := server.client.Put(t.Context(), "lease", "bound")
	require.NoError(t, err)
	identity := key(t)
	stores(t, func(t *testing.T, store Store) {
		saved, _, err := Save(t.Context(), store, SaveOptions{
			Etcd: server.etcd, Recipients: []age.Recipient{identity.Recipient()}, Keep: 1, Clock: testingclock.NewFakePassiveClock(now),
		})
		require.NoError(t, err)
		last, err := server.client.Put(t.Context(), "later", "lost")
		require.NoError(t, err)
		assert.Equal(t, last.Header.Revision-1, saved.Revision)

		var fetched bytes.Buffer
		require.NoError(t, Fetch(t.Context(), store, saved, []age.Identity{identity}, &fetched))
		dir := t.TempDir()
		path := filepath.Join(dir, "macrack.db")
		require.NoError(t, os.WriteFile(path, fetched.Bytes(), 0o600))
		require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: path, Name: "default", OutputDataDir: filepath.Join(dir, "etcd"), PeerURLs: []string{"http://localhost:2380"},
			InitialCluster: "default=http://localhost:2380", InitialClusterToken: "macrack", RevisionBump: 1_000_000_000, MarkCompacted: true,
		}))
		restored := startEtcd(t, filepath.Join(dir, "etcd"))
		response, err := restored.client.Get(t.Context(), "lease")
		require.NoError(t, err)
		require.Len(t, response.Kvs, 1)
		assert.Equal(t, "bound", string(response.Kvs[0].Value))
		assert.Greater(t, response.Header.Revision, last.Header.Revision)
		response, err = restored.client.Get(t.Context(), "later", clientv3.WithCountOnly())
		require.NoError(t, err)
		assert.Zero(t, response.Count)
		_, err = server.client.Delete(t.Context(), "later")
		require.NoError(t, err)
	})
}

func TestMembers(t *testing.T) {
	server := startEtcd(t, filepath.Join(t.TempDir(), "etcd"))
	save := func(e Etcd) error {
		_, _, err := Save(t.Context(), Directory(t.TempDir()), SaveOptions{
			Etcd: e, Recipients: []age.Recipient{key(t).Recipient()}, Clock: testingclock.NewFakePassiveClock(now),
		})
		return err
	}
	const down = "https://127.0.0.1:1"
	e := server.etcd
	e.Servers = append([]string{down}, e.Servers...)
	assert.NoError(t, save(e), "the second member")

	e.Servers = []string{down}
	assert.ErrorContains(t, save(e), down+": dial tcp 127.0.0.1:1: connect: connection refused; check that etcd runs")

	e = server.etcd
	other := pki.Dir(t.TempDir())
	authority, err := other.Authority("ca")
	require.NoError(t, err)
	require.NoError(t, authority.Client("client", "macrack"))
	e.CAFile = other.CertFile("ca")
	assert.ErrorContains(t, save(e), "certificate signed by unknown authority")
	e = server.etcd
	e.CertFile, e.KeyFile = other.CertFile("client"), other.KeyFile("client")
	assert.ErrorContains(t, save(e), "accepts this client")
	e.KeyFile = filepath.Join(t.TempDir(), "none")
	assert.ErrorContains(t, save(e), "check --etcd-cafile, --etcd-certfile and --etcd-keyfile")
}
