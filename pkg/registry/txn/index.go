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

// indexPrefix is where index keys are stored below the prefix of all keys.
const indexPrefix = "macrack.io/index/"

var kinds = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// GetKey reads an index key and makes the commit depend on its value, or on
// its absence. kind is lower case letters, digits and dashes; id is anything
// but empty. It does not see the writes of this plan.
func (t *Tx) GetKey(ctx context.Context, kind, id string) (value []byte, exists bool, err error) {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return nil, false, t.fail(err)
	}
	var kv *mvccpb.KeyValue
	if last, ok := t.domain.recent.get(key); ok && !t.fresh {
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

// AnyKey returns the value of some index key of a kind whose ID begins with
// prefix, if there is one. If there is none, the commit depends on that.
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
	kv, err := t.client.any(ctx, o, t.snap.rev)
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

// PutKey makes the commit write an index key, which must still be as GetKey
// of this plan found it, or found it absent.
func (t *Tx) PutKey(kind, id string, value []byte) error {
	key, err := t.indexKey(kind, id)
	if err != nil {
		return t.fail(err)
	}
	put := clientv3.OpPut(key, string(value))
	return t.fail(t.change(key, &put))
}

// DeleteKey makes the commit delete an index key, which must still be as
// GetKey of this plan found it.
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

// indexKey returns the key in etcd. It is not a path to be cleaned: no id can
// get out of its kind, and no two have the same key.
func (t *Tx) indexKey(kind, id string) (string, error) {
	if !kinds.MatchString(kind) || id == "" {
		return "", fmt.Errorf("txn: %q of kind %q cannot be an index key", id, kind)
	}
	return t.main.root + indexPrefix + kind + "/" + url.PathEscape(id), nil
}
