package txn

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// The etcd client waits for a connection and for an answer until the deadline of the request, which
// may be a minute. These are the limits.
const (
	connectTimeout = 2 * time.Second
	answerTimeout  = 5 * time.Second // to a transaction, or a read of one key
)

// A boundKV is a [clientv3.KV] with time limits, and with errors for users of the API.
type boundKV struct {
	clientv3.KV
	conn *grpc.ClientConn
}

func (b *boundKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if op := clientv3.OpGet(key, opts...); op.RangeBytes() != nil {
		if err := b.answers(ctx, key); err != nil {
			return nil, err
		}
		resp, err := b.KV.Get(ctx, key, opts...)
		return resp, explain(ctx, err, false)
	}
	if err := b.connected(ctx); err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := b.KV.Get(bound, key, opts...)
	return resp, explain(ctx, err, false)
}

func (b *boundKV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	if err := b.answers(ctx, key); err != nil {
		return nil, err
	}
	stream, err := b.KV.GetStream(ctx, key, opts...)
	return stream, explain(ctx, err, false)
}

func (b *boundKV) Txn(ctx context.Context) clientv3.Txn {
	bound, cancel := context.WithTimeout(ctx, answerTimeout)
	return &boundTxn{Txn: b.KV.Txn(bound), kv: b, ctx: ctx, cancel: cancel}
}

type boundTxn struct {
	clientv3.Txn
	kv     *boundKV
	ctx    context.Context
	cancel context.CancelFunc
	write  bool
}

func (t *boundTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cmps...)
	return t
}

func (t *boundTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	for _, op := range ops {
		t.write = t.write || !op.IsGet()
	}
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *boundTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *boundTxn) Commit() (*clientv3.TxnResponse, error) {
	defer t.cancel()
	if err := t.kv.connected(t.ctx); err != nil {
		return nil, err
	}
	resp, err := t.Txn.Commit()
	return resp, explain(t.ctx, err, t.write)
}

// answers reads the first key of a list, to distinguish an unresponsive etcd from a slow one.
func (b *boundKV) answers(ctx context.Context, key string) error {
	_, err := b.Get(ctx, key)
	return err
}

// connected waits for a connection. A request that fails here is known to have changed nothing.
func (b *boundKV) connected(ctx context.Context) error {
	state := b.conn.GetState()
	if state == connectivity.Ready {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for ; state != connectivity.Ready; state = b.conn.GetState() {
		switch state {
		case connectivity.Idle:
			b.conn.Connect()
		case connectivity.Shutdown:
			return errUnreachable
		}
		if !b.conn.WaitForStateChange(bound, state) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errUnreachable
		}
	}
	return nil
}
