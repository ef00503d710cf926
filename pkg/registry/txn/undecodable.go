package txn

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

// A sieve omits objects that cannot be decoded from lists and shows them as deleted in watches, so
// that they do not make all other objects inaccessible. Reads and writes of such an object still
// fail, as do plans that depend on it. Objects that cannot be decrypted are not omitted: a lost key
// must not look like an empty registry.
type sieve struct {
	resource    schema.GroupResource
	codec       runtime.Codec
	transformer value.Transformer
	newFunc     func() runtime.Object

	mu    sync.Mutex
	known map[string]int64 // the reported revisions by key
}

// decodes reports whether a value can be decoded, if it can be decrypted.
func (s *sieve) decodes(ctx context.Context, kv *mvccpb.KeyValue) bool {
	data, _, err := s.transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
	if err != nil {
		return true
	}
	obj, _, err := s.codec.Decode(data, nil, s.newFunc())
	if err == nil {
		err = named(obj)
	}
	if err != nil {
		s.report(string(kv.Key), kv.ModRevision, err)
	}
	return err == nil
}

// report logs and counts an object that cannot be decoded, once per revision.
func (s *sieve) report(key string, rev int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key] >= rev {
		return
	}
	s.known[key] = rev
	undecodable.WithLabelValues(s.resource.String()).Inc()
	klog.ErrorS(err, "Object cannot be decoded; omitted from lists and watches", "key", key, "revision", rev)
}

// event returns an event in which values that cannot be decoded are absent, or nil if nothing
// changed.
func (s *sieve) event(ctx context.Context, e *clientv3.Event) *clientv3.Event {
	now := e.Type == clientv3.EventTypePut && s.decodes(ctx, e.Kv)
	before := e.PrevKv != nil && s.decodes(ctx, e.PrevKv)
	switch {
	case e.Type == clientv3.EventTypePut && now && (before || e.PrevKv == nil):
		return e
	case now: // appears
		return &clientv3.Event{Type: e.Type, Kv: &mvccpb.KeyValue{Key: e.Kv.Key, Value: e.Kv.Value, CreateRevision: e.Kv.ModRevision, ModRevision: e.Kv.ModRevision}}
	case before && e.Type == clientv3.EventTypePut: // vanishes
		return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: e.Kv.Key, ModRevision: e.Kv.ModRevision}, PrevKv: e.PrevKv}
	case before || e.Type == clientv3.EventTypeDelete && e.PrevKv == nil:
		return e
	}
	return nil
}

// A sieveWatcher is a [clientv3.Watcher] that applies the sieve in its context, if any.
type sieveWatcher struct {
	clientv3.Watcher
}

func (w sieveWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	s, ok := ctx.Value(sieveKey{}).(*sieve)
	if !ok {
		return in
	}
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range in { // closed when ctx is done
			if events := s.events(ctx, resp.Events); len(events) > 0 || len(resp.Events) == 0 {
				resp.Events = events
				select {
				case out <- resp:
				case <-ctx.Done():
				}
			}
		}
	}()
	return out
}

// A sieveKV is a [clientv3.KV] that applies the sieve in its context, if any, to the list with
// which the storage begins a watch.
type sieveKV struct {
	clientv3.KV
}

func (k sieveKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := k.KV.Get(ctx, key, opts...)
	if s, ok := ctx.Value(sieveKey{}).(*sieve); ok && err == nil {
		resp.Kvs = s.values(ctx, resp.Kvs)
	}
	return resp, err
}

func (k sieveKV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	in, err := k.KV.GetStream(ctx, key, opts...)
	s, ok := ctx.Value(sieveKey{}).(*sieve)
	if !ok || err != nil {
		return in, err
	}
	out := make(chan clientv3.RangeStreamResponse)
	go func() {
		defer close(out)
		for resp := range in { // closed when ctx is done
			if resp.RangeResponse != nil {
				resp.RangeResponse.Kvs = s.values(ctx, resp.RangeResponse.Kvs)
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

func (s *sieve) values(ctx context.Context, kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !s.decodes(ctx, kv) })
}

func (s *sieve) events(ctx context.Context, events []*clientv3.Event) (seen []*clientv3.Event) {
	for _, e := range events {
		if e = s.event(ctx, e); e != nil {
			seen = append(seen, e)
		}
	}
	return seen
}

// sieveKey is the context key of the sieve of a watch. skippedKey is that of the *[]skippedItem to
// which the decoder adds the omitted items of a list.
type (
	sieveKey   struct{}
	skippedKey struct{}
)

// A sieveDecoder returns an object without a name for an item of a list that cannot be decoded, if
// the context has a skippedKey. No stored object lacks a name, but empty data decodes as an object
// without one.
type sieveDecoder struct {
	etcd3.Decoder
}

func (d sieveDecoder) Decode(data []byte, into runtime.Object, rev int64) error {
	if err := d.Decoder.Decode(data, into, rev); err != nil {
		return err
	}
	return named(into)
}

func (d sieveDecoder) DecodeListItem(ctx context.Context, data []byte, rev uint64, newItemFunc func() runtime.Object) (runtime.Object, error) {
	obj, err := d.Decoder.DecodeListItem(ctx, data, rev, newItemFunc)
	if err == nil {
		err = named(obj)
	}
	skipped, ok := ctx.Value(skippedKey{}).(*[]skippedItem)
	if err == nil || !ok {
		return obj, err
	}
	*skipped = append(*skipped, skippedItem{int64(rev), err})
	return newItemFunc(), nil
}

// named returns an error for an object without a name.
func named(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err == nil && m.GetName() == "" {
		err = errors.New("the stored object has no name")
	}
	return err
}

type skippedItem struct {
	rev int64
	err error
}

// A sieveStore is a [storage.Interface] that applies a sieve to lists and watches.
type sieveStore struct {
	storage.Interface
	sieve  *sieve
	kv     clientv3.KV
	prefix string // of all keys of the resource
}

// GuaranteedUpdate reads the object itself if the watch cache is known to be behind.
func (s *sieveStore) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, current(ctx, cached))
}

// Delete reads the object itself if the watch cache is known to be behind.
func (s *sieveStore) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return s.Interface.Delete(ctx, key, out, preconditions, validate, current(ctx, cached), opts)
}

// current returns the main object of a write from the watch cache, or nil if this process knows of
// a newer version.
func current(ctx context.Context, cached runtime.Object) runtime.Object {
	tx, _ := ctx.Value(contextKey{}).(*Tx)
	if tx == nil || cached == nil {
		return cached
	}
	rev, err := versioner.ObjectResourceVersion(cached)
	if err != nil {
		return nil
	}
	if _, newer := tx.backend.revisions.newerThan(tx.mainKey, int64(rev)); newer {
		return nil
	}
	return cached
}

func (s *sieveStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(context.WithValue(ctx, sieveKey{}, s.sieve), key, opts)
}

func (s *sieveStore) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	var skipped []skippedItem
	if err := s.Interface.GetList(context.WithValue(ctx, skippedKey{}, &skipped), key, opts, list); err != nil || len(skipped) == 0 {
		return err
	}
	for _, item := range skipped {
		s.report(ctx, item)
	}
	return dropNameless(list)
}

// report determines the key of an object omitted from a list. The decoder does not know the key.
func (s *sieveStore) report(ctx context.Context, item skippedItem) {
	key := "unknown"
	resp, err := s.kv.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(item.rev), clientv3.WithMaxModRev(item.rev))
	if err == nil && len(resp.Kvs) > 0 {
		key = string(resp.Kvs[0].Key)
	}
	s.sieve.report(key, item.rev, item.err)
}

// dropNameless removes the objects without a name from a list.
func dropNameless(list runtime.Object) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	v := reflect.ValueOf(items).Elem()
	kept := reflect.MakeSlice(v.Type(), 0, v.Len())
	for i := range v.Len() {
		if obj, ok := v.Index(i).Addr().Interface().(metav1.Object); !ok || obj.GetName() != "" {
			kept = reflect.Append(kept, v.Index(i))
		}
	}
	v.Set(kept)
	return nil
}
