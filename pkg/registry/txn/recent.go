package txn

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/utils/lru"
)

// recent remembers companions that this process has lately read from etcd or
// written. It is ahead of the watch caches, which learn of a write a little
// later, and knows index keys, which no watch cache has. It may well be
// behind etcd, which the commit will tell.
type recent struct {
	cache *lru.Cache
}

// A sight is what etcd had under a key at a revision: kv, or nothing.
type sight struct {
	kv  *mvccpb.KeyValue
	rev int64
}

func newRecent() *recent { return &recent{lru.New(1 << 14)} }

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
	last, ok := r.get(key)
	if last.rev < rev && (ok || kv != nil) {
		r.cache.Add(key, sight{kv, rev})
	}
}
