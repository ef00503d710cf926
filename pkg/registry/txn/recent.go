package txn

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/lru"
)

// recent caches companions that this process has recently read from etcd or written, and index keys
// written by any process. It is ahead of the watch caches, which receive writes later and do not
// have index keys. It may be behind etcd; the commit detects this.
type recent struct {
	mu    sync.Mutex
	cache *lru.Cache
}

// A sight is the observation of a key in etcd at a revision: kv, or nil if the key did not exist.
type sight struct {
	kv  *mvccpb.KeyValue
	rev int64
}

func newRecent() *recent { return &recent{cache: lru.New(1 << 14)} }

func (r *recent) get(key string) (sight, bool) {
	v, _ := r.cache.Get(key)
	s, ok := v.(sight)
	return s, ok
}

// outruns reports whether a key is known to have changed since a revision.
func (r *recent) outruns(key string, rev int64) (sight, bool) {
	s, ok := r.get(key)
	return s, ok && s.rev > rev && modRevision(s.kv) != rev
}

// saw records a read or written state of a key. Absence is recorded only if the key existed before.
func (r *recent) saw(key string, kv *mvccpb.KeyValue, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.get(key)
	if last.rev < rev && (ok || kv != nil) {
		r.cache.Add(key, sight{kv, rev})
	}
}

// follow records the writes of all processes to index keys until the client is closed. Writes
// missed while the watch is interrupted are read when they are needed.
func (r *recent) follow(client *clientv3.Client, prefix string) {
	wait.UntilWithContext(client.Ctx(), func(ctx context.Context) {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		for resp := range client.Watch(ctx, prefix, clientv3.WithPrefix()) {
			for _, e := range resp.Events {
				kv := e.Kv
				if e.Type == clientv3.EventTypeDelete {
					kv = nil
				}
				r.saw(string(e.Kv.Key), kv, e.Kv.ModRevision)
			}
		}
	}, time.Second)
}
