package txn

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys returns the values of all index keys of a kind by ID, at one revision.
func (b *Backend) Keys(ctx context.Context, kind string) (map[string][]byte, error) {
	if !kinds.MatchString(kind) {
		return nil, fmt.Errorf("txn: %q cannot be a kind of index keys", kind)
	}
	s := b.anyStore()
	if s == nil {
		return nil, errors.New("txn: the backend has no planned resource yet")
	}
	prefix := s.resource.root + indexPrefix + kind + "/"
	resp, err := s.client.kv.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, explain(ctx, err, false)
	}
	values := make(map[string][]byte, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		id, err := url.PathUnescape(strings.TrimPrefix(string(kv.Key), prefix))
		if err != nil {
			return nil, fmt.Errorf("txn: %s is not an index key: %w", kv.Key, err)
		}
		values[id] = kv.Value
	}
	return values, nil
}

// Key returns the value of an index key, and the revision of its last write, which is 0 if there is
// no such key.
func (b *Backend) Key(ctx context.Context, kind, id string) (value []byte, revision int64, err error) {
	s := b.anyStore()
	if s == nil {
		return nil, 0, errors.New("txn: the backend has no planned resource yet")
	}
	key, err := (&Tx{main: s.resource}).indexKey(kind, id)
	if err != nil {
		return nil, 0, err
	}
	resp, err := s.client.kv.Get(ctx, key)
	if err != nil {
		return nil, 0, explain(ctx, err, false)
	}
	if len(resp.Kvs) == 0 {
		return nil, 0, nil
	}
	return resp.Kvs[0].Value, resp.Kvs[0].ModRevision, nil
}
