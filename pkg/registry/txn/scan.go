package txn

import (
	"context"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// scanPage is the number of objects that a scan reads at once.
const scanPage = 1000

// A Scan reads the objects of a namespaced resource at one revision, with one page in memory.
//
// etcd compacts old revisions after some minutes; a scan that takes longer fails.
type Scan struct {
	resource *resource
	kv       clientv3.KV
	prefix   string // of the keys of all objects
	revision int64
	history  History
	page     int64
}

// A History identifies the history of etcd's revisions. Within a history, the objects of an earlier
// revision never change. A restored backup begins another history, because etcd restarts. Each new
// connection to a member of etcd therefore begins a history.
type History struct {
	cluster, term uint64
	connections   int64
}

// An ObjectKey is the place of an object of the scanned resource. A key that no API server has
// written can have a namespace with slashes, in which the API finds nothing.
type ObjectKey struct{ Namespace, Name string }

// Scan starts a scan of a resource at the current revision.
func (b *Backend) Scan(ctx context.Context, gr schema.GroupResource) (*Scan, error) {
	b.mu.RLock()
	r := b.resources[gr]
	b.mu.RUnlock()
	if r == nil {
		return nil, fmt.Errorf("txn: %s is not a resource of the backend", gr)
	}
	etcd := r.etcd.Load()
	if etcd == nil {
		return nil, fmt.Errorf("txn: %s is not stored yet", gr)
	}
	connections := r.connections.Load() // before the first read
	s := &Scan{resource: r, kv: etcd.KV, prefix: r.root + strings.TrimPrefix(r.prefix, "/") + "/", page: scanPage}
	resp, err := s.kv.Get(ctx, s.prefix, clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	s.revision = resp.Header.Revision
	s.history = History{resp.Header.ClusterId, resp.Header.RaftTerm, connections}
	return s, nil
}

// Revision returns the revision of the scan, and the history that it belongs to.
func (s *Scan) Revision() (int64, History) { return s.revision, s.history }

// Continues reports whether the history has not ended since the scan began. If it has, a part of
// the answers may be of another history.
func (s *Scan) Continues() bool { return s.resource.connections.Load() == s.history.connections }

// Count returns the number of objects, including those that cannot be decoded.
func (s *Scan) Count(ctx context.Context) (int64, error) {
	resp, err := s.kv.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(s.revision), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

// Namespaces returns the namespaces that have objects, in order. It reads the keys only, not the
// values.
func (s *Scan) Namespaces(ctx context.Context) ([]string, error) {
	var namespaces []string
	for from := s.prefix; ; {
		key, err := s.first(ctx, from)
		if key == "" || err != nil {
			return namespaces, err
		}
		namespace, _, _ := strings.Cut(strings.TrimPrefix(key, s.prefix), "/")
		namespaces = append(namespaces, namespace)
		from = clientv3.GetPrefixRangeEnd(s.prefix + namespace + "/")
	}
}

// first returns the first key that is not before the given one, or nothing. It streams if etcd
// supports this, because etcd counts all following keys for other answers.
func (s *Scan) first(ctx context.Context, from string) (string, error) {
	options := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.prefix)), clientv3.WithRev(s.revision), clientv3.WithKeysOnly()}
	key, err := s.firstOfStream(ctx, from, options)
	if status.Code(err) != codes.Unimplemented {
		return key, explain(ctx, err, false)
	}
	resp, err := s.kv.Get(ctx, from, append(options, clientv3.WithLimit(1))...) // before etcd 3.7
	if err != nil || len(resp.Kvs) == 0 {
		return "", err
	}
	return string(resp.Kvs[0].Key), nil
}

func (s *Scan) firstOfStream(ctx context.Context, from string, options []clientv3.OpOption) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.kv.GetStream(ctx, from, options...)
	if err != nil {
		return "", err
	}
	defer func() {
		cancel()
		for range stream { // unblocks its sender
		}
	}()
	for resp := range stream {
		if err := resp.Err(); err != nil {
			return "", err
		}
		if len(resp.Kvs) > 0 {
			return string(resp.Kvs[0].Key), nil
		}
	}
	return "", ctx.Err() // a cancelled stream may end without an error
}

// A Value is an object in its stored encoding, but decrypted. Its bytes are valid until the next
// value.
type Value struct {
	Data []byte
	// Key is the place of the object, whatever its data says.
	Key ObjectKey
	// Created is the revision at which the object was created.
	Created  int64
	revision int64
}

// Values returns the objects of a namespace with names from from up to, but not including, to, in
// order. An empty to means no limit. The last value has an error if not all could be read. The time
// that etcd takes for a page grows with the number of remaining objects, so a large namespace is
// faster to read in parts.
func (s *Scan) Values(ctx context.Context, namespace, from, to string) iter.Seq2[Value, error] {
	from, end := s.bounds(namespace, from, to)
	return func(yield func(Value, error) bool) {
		for {
			resp, err := s.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(s.revision), clientv3.WithLimit(s.page))
			if err != nil {
				yield(Value{}, err)
				return
			}
			if !s.yield(ctx, resp.Kvs, yield) || !resp.More {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
}

// bounds returns the keys between which the objects of a namespace with names from one up to, but
// not including, another are stored. An empty to means no limit.
func (s *Scan) bounds(namespace, from, to string) (first, end string) {
	prefix := s.prefix + namespace + "/"
	if to == "" {
		return prefix + from, clientv3.GetPrefixRangeEnd(prefix)
	}
	return prefix + from, prefix + to
}

// yield calls yield with each value, and returns whether it wants more.
func (s *Scan) yield(ctx context.Context, kvs []*mvccpb.KeyValue, yield func(Value, error) bool) bool {
	for _, kv := range kvs {
		data, _, err := s.resource.transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
		if err != nil {
			yield(Value{}, storage.NewInternalError(fmt.Errorf("%s: %w", kv.Key, err)))
			return false
		}
		if !yield(Value{data, s.place(kv.Key), kv.CreateRevision, kv.ModRevision}, nil) {
			return false
		}
	}
	return true
}

// place returns the place of the object with a key in etcd.
func (s *Scan) place(key []byte) ObjectKey {
	namespace, name := path.Split(strings.TrimPrefix(string(key), s.prefix))
	return ObjectKey{strings.TrimSuffix(namespace, "/"), name}
}

// Changes returns the objects of a namespace, in a range as for Values, that were written after a
// revision, and the number of the others. etcd reads them from its index, and sends only the
// changes.
func (s *Scan) Changes(ctx context.Context, namespace, from, to string, since int64) (changed []ObjectKey, others int64, err error) {
	from, end := s.bounds(namespace, from, to)
	resp, err := s.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(s.revision), clientv3.WithKeysOnly(), clientv3.WithMinModRev(since+1))
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range resp.Kvs {
		changed = append(changed, s.place(kv.Key))
	}
	return changed, resp.Count - int64(len(changed)), nil // etcd counts before it filters
}

// scanBatch is the number of objects that are read by their keys at once; etcd accepts at most 128.
const scanBatch = 100

// Get returns the objects with the given keys, in their order, without those that do not exist. The
// last value has an error if not all could be read.
func (s *Scan) Get(ctx context.Context, keys []ObjectKey) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		for batch := range slices.Chunk(keys, scanBatch) {
			var reads []clientv3.Op
			for _, key := range batch {
				reads = append(reads, clientv3.OpGet(s.prefix+key.Namespace+"/"+key.Name, clientv3.WithRev(s.revision)))
			}
			resp, err := s.kv.Txn(ctx).Then(reads...).Commit()
			if err != nil {
				yield(Value{}, err)
				return
			}
			for _, read := range resp.Responses {
				if !s.yield(ctx, read.GetResponseRange().Kvs, yield) {
					return
				}
			}
		}
	}
}

// Decode decodes a value.
func (s *Scan) Decode(v Value, into runtime.Object) error {
	if err := s.resource.decoder.Decode(v.Data, into, v.revision); err != nil {
		return storage.NewInternalError(fmt.Errorf("%s/%s: %w", v.Key.Namespace, v.Key.Name, err))
	}
	return nil
}
