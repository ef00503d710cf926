package txn

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// A client is a [kubernetes.Interface] whose writes include the companions of the Tx in their
// context. Other requests pass through unchanged.
type client struct {
	kubernetes.Interface
	kv clientv3.KV
}

type contextKey struct{}

// companions returns the Tx to commit together with a write of key, if any.
func companions(ctx context.Context, key string) *Tx {
	tx, _ := ctx.Value(contextKey{}).(*Tx)
	if tx == nil || tx.mainKey != key || len(tx.ops) == 0 {
		return nil
	}
	return tx
}

func (c *client) OptimisticPut(ctx context.Context, key string, val []byte, rev int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	tx := companions(ctx, key)
	if tx == nil {
		resp, err := c.Interface.OptimisticPut(ctx, key, val, rev, opts)
		noteMain(ctx, key, rev, clientv3.OpPut(key, string(val)), resp, err)
		return resp, err
	}
	if opts.LeaseID != 0 {
		return kubernetes.PutResponse{}, errors.New("txn: an object with companions cannot have a TTL")
	}
	put := clientv3.OpPut(key, string(val))
	resp, err := c.commit(ctx, tx, rev, opts.GetOnFailure, put)
	noteMain(ctx, key, rev, put, resp, err)
	return resp, err
}

func (c *client) OptimisticDelete(ctx context.Context, key string, rev int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	tx := companions(ctx, key)
	if tx == nil {
		resp, err := c.Interface.OptimisticDelete(ctx, key, rev, opts)
		noteMain(ctx, key, rev, clientv3.OpDelete(key), kubernetes.PutResponse(resp), err)
		return resp, err
	}
	del := clientv3.OpDelete(key)
	resp, err := c.commit(ctx, tx, rev, opts.GetOnFailure, del)
	noteMain(ctx, key, rev, del, resp, err)
	return kubernetes.DeleteResponse(resp), err
}

// noteMain remembers the write of an existing main object. The next write of this process then does
// not start from a stale object of the watch cache.
func noteMain(ctx context.Context, key string, rev int64, write clientv3.Op, resp kubernetes.PutResponse, err error) {
	tx, _ := ctx.Value(contextKey{}).(*Tx)
	if tx != nil && tx.mainKey == key && rev != 0 && err == nil && resp.Succeeded {
		tx.backend.revisions.observe(key, written(&write, resp.Revision), resp.Revision)
	}
}

// commit writes the main object and its companions if all are at their expected revisions. If the
// main object has changed, it returns the response of the stock client; if only companions have
// changed, it returns a *conflictError. In both cases, tx has a snapshot for the next plan. Errors
// of etcd are never retried here, because the transaction may have been committed.
func (c *client) commit(ctx context.Context, tx *Tx, rev int64, getOnFailure bool, then ...clientv3.Op) (resp kubernetes.PutResponse, err error) {
	keys := []string{tx.mainKey}
	expect := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(tx.mainKey), "=", rev)}
	otherwise := []clientv3.Op{clientv3.OpGet(tx.mainKey)}
	for _, o := range tx.ops {
		keys = append(keys, o.id())
		if !faultSkipCompare() {
			expect = append(expect, o.compare())
		}
		if o.write != nil {
			then = append(then, *o.write)
		}
		otherwise = append(otherwise, o.get())
	}
	if err := faultBeforeCommit(ctx, tx.mainKey); err != nil {
		return resp, err
	}
	r, err := c.kv.Txn(ctx).If(expect...).Then(then...).Else(otherwise...).Commit()
	if err == nil {
		err = faultAfterCommit(ctx, tx.mainKey)
	}
	if err != nil {
		return resp, err
	}
	resp.Succeeded, resp.Revision = r.Succeeded, r.Header.Revision
	if r.Succeeded {
		tx.committed = resp.Revision
		for _, o := range tx.ops {
			if o.write != nil && (o.resource == nil || o.rev != 0) { // a created object is unlikely to be a companion soon
				tx.backend.revisions.observe(o.key, written(o.write, resp.Revision), resp.Revision)
			}
		}
		return resp, nil
	}
	tx.fresh, tx.next = true, newSnapshot(tx, r, keys)
	if main := tx.next.keys[tx.mainKey]; modRevision(main) != rev {
		if getOnFailure {
			resp.KV = main
		}
		return resp, nil
	}
	conflict := &conflictError{}
	for _, o := range tx.ops {
		if modRevision(tx.next.keys[o.id()]) != o.rev {
			conflict.keys = append(conflict.keys, o.key)
		}
	}
	return resp, conflict
}

// snapshot reads keys at one revision.
func (c *client) snapshot(ctx context.Context, tx *Tx, keys []string) (*snapshot, error) {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	var gets []clientv3.Op
	for _, key := range keys {
		gets = append(gets, clientv3.OpGet(key))
	}
	r, err := c.kv.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, err
	}
	return newSnapshot(tx, r, keys), nil
}

// at reads a key at a revision.
func (c *client) at(ctx context.Context, key string, rev int64) (*mvccpb.KeyValue, error) {
	resp, err := c.Get(ctx, key, kubernetes.GetOptions{Revision: rev})
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, &conflictError{keys: []string{key}} // the plan took minutes, and etcd has compacted the revision
	}
	return resp.KV, err
}

// anyKey returns any key in the range of o at a revision, or nil.
func (c *client) anyKey(ctx context.Context, o op, rev int64) (*mvccpb.KeyValue, error) {
	resp, err := c.kv.Get(ctx, o.key, clientv3.WithRange(o.end), clientv3.WithLimit(1), clientv3.WithRev(rev))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, &conflictError{keys: []string{o.key}} // the plan took minutes, and etcd has compacted the revision
	}
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return resp.Kvs[0], nil
}

// newSnapshot returns the results of the gets of a transaction, one for each key.
func newSnapshot(tx *Tx, r *clientv3.TxnResponse, keys []string) *snapshot {
	snap := &snapshot{rev: r.Header.Revision, keys: make(map[string]*mvccpb.KeyValue, len(keys))}
	for i, key := range keys {
		var kv *mvccpb.KeyValue
		if kvs := r.Responses[i].GetResponseRange().GetKvs(); len(kvs) == 1 {
			kv = kvs[0]
		}
		snap.keys[key] = kv
		if key != tx.mainKey {
			tx.backend.revisions.observe(key, kv, snap.rev)
		}
	}
	return snap
}

// written returns the state of a key after a committed write.
func written(write *clientv3.Op, rev int64) *mvccpb.KeyValue {
	if !write.IsPut() {
		return nil
	}
	return &mvccpb.KeyValue{Key: write.KeyBytes(), Value: write.ValueBytes(), ModRevision: rev}
}

func modRevision(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}
