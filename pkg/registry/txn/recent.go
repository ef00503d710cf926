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

// recent remembers companions that this process has lately read from etcd or
// written, and index keys that any process has. It is ahead of the watch
// caches, which learn of a write a little later, and has the index keys, which
// they have not. It may well be behind etcd, which the commit will tell.
type recent struct {
	mu    sync.Mutex
	cache *lru.Cache
}

// A sight is what etcd had under a key at a revision: kv, or nothing.
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

// outruns tells whether a key is known to have moved on from a revision.
func (r *recent) outruns(key string, rev int64) (sight, bool) {
	s, ok := r.get(key)
	return s, ok && s.rev > rev && modRevision(s.kv) != rev
}

// saw takes note of what was read or written. That something is not there
// is worth a note only if it was there before.
func (r *recent) saw(key string, kv *mvccpb.KeyValue, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.get(key)
	if last.rev < rev && (ok || kv != nil) {
		r.cache.Add(key, sight{kv, rev})
	}
}

// follow takes note of what any process writes to index keys, until the client
// is closed. What it misses when the watch breaks off is read when it matters.
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
