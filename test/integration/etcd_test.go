package integration

import (
	"strings"
	"testing"

	"macrack.io/macrack/test/cluster/etcd"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/grpclog"
)

// etcdClient returns a client of macrack's etcd.
func etcdClient(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := etcd.Connect(tb.Cluster.MacrackEtcd())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// snapshot returns the last revision of each of macrack's keys. Health checks and the MacNodes' own
// reports are left out, because the server and the agents write them at any time.
func snapshot(t *testing.T) map[string]int64 {
	t.Helper()
	resp, err := etcdClient(t).Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	revisions := map[string]int64{}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if strings.Contains(key, "/health") || strings.Contains(key, "/index/clock/") || strings.Contains(key, "/macnodes/") || strings.Contains(key, "/macosimages/") || strings.Contains(key, "/macnodeclasses/") {
			continue
		}
		revisions[key] = kv.ModRevision
	}
	return revisions
}

func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(discard{}, discard{}, discard{})) }

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
