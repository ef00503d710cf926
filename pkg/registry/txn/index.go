package txn

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"regexp"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// indexPrefix is the prefix of index keys below the prefix of all keys.
const indexPrefix = "macrack.io/index/"

var kinds = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// GetKey reads an index key and makes the commit depend on its value, or on its absence. kind
// consists of lower case letters, digits and dashes; id is any non-empty string. The writes of the
// same plan are not visible.
func (t *Tx) GetKey(ctx context.Context, kind, id string) (value []byte, exists bool, err error) {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return nil, false, t.fail(err)
	}
	var kv *mvccpb.KeyValue
	if last, ok := t.backend.revisions.get(key); ok && !t.fresh {
		kv, t.stale = last.kv, true
	} else if kv, err = t.read(ctx, key); err != nil {
		return nil, false, t.fail(err)
	}
	if err := t.add(op{key: key, rev: modRevision(kv)}); err != nil {
		return nil, false, t.fail(err)
	}
	if kv == nil {
		return nil, false, nil
	}
	return bytes.Clone(kv.Value), true, nil
}

// AnyKey returns the value of any one index key of a kind whose ID begins with prefix. If no such
// key exists, the commit depends on its absence.
func (t *Tx) AnyKey(ctx context.Context, kind, prefix string) (value []byte, exists bool, err error) {
	key, err := t.indexKey(kind, prefix)
	if err != nil {
		return nil, false, t.fail(err)
	}
	if t.snap == nil { // so that all reads are of one revision
		if _, err := t.read(ctx, t.mainKey); err != nil {
			return nil, false, t.fail(err)
		}
	}
	o := op{key: key, end: clientv3.GetPrefixRangeEnd(key)}
	kv, err := t.client.anyKey(ctx, o, t.snap.rev)
	if err != nil {
		return nil, false, t.fail(err)
	}
	if kv != nil {
		return kv.Value, true, nil
	}
	return nil, false, t.fail(t.add(o))
}

// CreateKey makes the commit create an index key, which must not exist.
func (t *Tx) CreateKey(kind, id string, value []byte) error {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return t.fail(err)
	}
	put := clientv3.OpPut(key, string(value))
	return t.fail(t.add(op{key: key, write: &put}))
}

// PutKey makes the commit write an index key. It must be unchanged, or still absent, since GetKey
// of this plan.
func (t *Tx) PutKey(kind, id string, value []byte) error {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return t.fail(err)
	}
	put := clientv3.OpPut(key, string(value))
	return t.fail(t.change(key, &put))
}

// DeleteKey makes the commit delete an index key. It must be unchanged since GetKey of this plan.
func (t *Tx) DeleteKey(kind, id string) error {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return t.fail(err)
	}
	del := clientv3.OpDelete(key)
	return t.fail(t.change(key, &del))
}

func (t *Tx) change(key string, write *clientv3.Op) error {
	for _, o := range t.ops {
		if o.id() == key {
			return t.add(op{key: key, rev: o.rev, write: write})
		}
	}
	return fmt.Errorf("txn: %s must be read before it is changed", key)
}

// indexKey returns the key in etcd. The key is not cleaned as a path: no ID can leave its kind, and
// different IDs have different keys.
func (t *Tx) indexKey(kind, id string) (string, error) {
	if !kinds.MatchString(kind) || id == "" {
		return "", fmt.Errorf("txn: %q of kind %q cannot be an index key", id, kind)
	}
	return t.main.root + indexPrefix + kind + "/" + url.PathEscape(id), nil
}
