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

// A revisionCache has companions that this process has recently read from etcd or written, and
// index keys written by any process. It is ahead of the watch caches, which receive writes later
// and do not have index keys. It may be behind etcd; the commit detects this.
type revisionCache struct {
	mu    sync.Mutex
	cache *lru.Cache
}

// An observation is the state of a key in etcd at a revision: kv, or nil if the key did not exist.
type observation struct {
	kv  *mvccpb.KeyValue
	rev int64
}

func newRevisionCache() *revisionCache { return &revisionCache{cache: lru.New(1 << 14)} }

func (r *revisionCache) get(key string) (observation, bool) {
	v, _ := r.cache.Get(key)
	s, ok := v.(observation)
	return s, ok
}

// newerThan returns the last observation of a key, and reports whether the key has changed since a
// revision.
func (r *revisionCache) newerThan(key string, rev int64) (observation, bool) {
	s, ok := r.get(key)
	return s, ok && s.rev > rev && modRevision(s.kv) != rev
}

// observe records a read or written state of a key. Absence is recorded only if the key existed
// before.
func (r *revisionCache) observe(key string, kv *mvccpb.KeyValue, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.get(key)
	if last.rev < rev && (ok || kv != nil) {
		r.cache.Add(key, observation{kv, rev})
	}
}

// watch records the writes of all processes to index keys until the client is closed. Writes
// missed while the watch is interrupted are read when they are needed.
func (r *revisionCache) watch(client *clientv3.Client, prefix string) {
	wait.UntilWithContext(client.Ctx(), func(ctx context.Context) {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		for resp := range client.Watch(ctx, prefix, clientv3.WithPrefix()) {
			for _, e := range resp.Events {
				kv := e.Kv
				if e.Type == clientv3.EventTypeDelete {
					kv = nil
				}
				r.observe(string(e.Kv.Key), kv, e.Kv.ModRevision)
			}
		}
	}, time.Second)
}
