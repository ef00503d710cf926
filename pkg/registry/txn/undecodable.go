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

// An undecodableFilter omits objects that cannot be decoded from lists and shows them as deleted in
// watches, so that they do not make all other objects inaccessible. Reads and writes of such an
// object still fail, as do plans that depend on it. Objects that cannot be decrypted are not
// omitted: a lost key must not look like an empty registry.
type undecodableFilter struct {
	resource    schema.GroupResource
	codec       runtime.Codec
	transformer value.Transformer
	newFunc     func() runtime.Object

	mu    sync.Mutex
	known map[string]int64 // the reported revisions by key
}

// decodes reports whether a value can be decoded, if it can be decrypted.
func (f *undecodableFilter) decodes(ctx context.Context, kv *mvccpb.KeyValue) bool {
	data, _, err := f.transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
	if err != nil {
		return true
	}
	obj, _, err := f.codec.Decode(data, nil, f.newFunc())
	if err == nil {
		err = requireName(obj)
	}
	if err != nil {
		f.report(string(kv.Key), kv.ModRevision, err)
	}
	return err == nil
}

// report logs and counts an object that cannot be decoded, once per revision.
func (f *undecodableFilter) report(key string, rev int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[key] >= rev {
		return
	}
	f.known[key] = rev
	undecodable.WithLabelValues(f.resource.String()).Inc()
	klog.ErrorS(err, "Object cannot be decoded; omitted from lists and watches", "key", key, "revision", rev)
}

// event returns an event in which values that cannot be decoded are absent, or nil if nothing
// changed.
func (f *undecodableFilter) event(ctx context.Context, e *clientv3.Event) *clientv3.Event {
	now := e.Type == clientv3.EventTypePut && f.decodes(ctx, e.Kv)
	before := e.PrevKv != nil && f.decodes(ctx, e.PrevKv)
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

// A filteringWatcher is a [clientv3.Watcher] that applies the filter in its context, if any.
type filteringWatcher struct {
	clientv3.Watcher
}

func (w filteringWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	f, ok := ctx.Value(filterKey{}).(*undecodableFilter)
	if !ok {
		return in
	}
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range in { // closed when ctx is done
			if events := f.events(ctx, resp.Events); len(events) > 0 || len(resp.Events) == 0 {
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

// A filteringKV is a [clientv3.KV] that applies the filter in its context, if any, to the list with
// which the storage begins a watch.
type filteringKV struct {
	clientv3.KV
}

func (k filteringKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := k.KV.Get(ctx, key, opts...)
	if f, ok := ctx.Value(filterKey{}).(*undecodableFilter); ok && err == nil {
		resp.Kvs = f.values(ctx, resp.Kvs)
	}
	return resp, err
}

func (k filteringKV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	in, err := k.KV.GetStream(ctx, key, opts...)
	f, ok := ctx.Value(filterKey{}).(*undecodableFilter)
	if !ok || err != nil {
		return in, err
	}
	out := make(chan clientv3.RangeStreamResponse)
	go func() {
		defer close(out)
		for resp := range in { // closed when ctx is done
			if resp.RangeResponse != nil {
				resp.RangeResponse.Kvs = f.values(ctx, resp.RangeResponse.Kvs)
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

func (f *undecodableFilter) values(ctx context.Context, kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !f.decodes(ctx, kv) })
}

func (f *undecodableFilter) events(ctx context.Context, events []*clientv3.Event) (seen []*clientv3.Event) {
	for _, e := range events {
		if e = f.event(ctx, e); e != nil {
			seen = append(seen, e)
		}
	}
	return seen
}

// filterKey is the context key of the filter of a watch. skippedKey is that of the *[]skippedItem
// to which the decoder adds the omitted items of a list.
type (
	filterKey  struct{}
	skippedKey struct{}
)

// A filteringDecoder returns an object without a name for an item of a list that cannot be decoded,
// if the context has a skippedKey. No stored object lacks a name, but empty data decodes as an
// object without one.
type filteringDecoder struct {
	etcd3.Decoder
}

func (d filteringDecoder) Decode(data []byte, into runtime.Object, rev int64) error {
	if err := d.Decoder.Decode(data, into, rev); err != nil {
		return err
	}
	return requireName(into)
}

func (d filteringDecoder) DecodeListItem(ctx context.Context, data []byte, rev uint64, newItemFunc func() runtime.Object) (runtime.Object, error) {
	obj, err := d.Decoder.DecodeListItem(ctx, data, rev, newItemFunc)
	if err == nil {
		err = requireName(obj)
	}
	skipped, ok := ctx.Value(skippedKey{}).(*[]skippedItem)
	if err == nil || !ok {
		return obj, err
	}
	*skipped = append(*skipped, skippedItem{int64(rev), err})
	return newItemFunc(), nil
}

// requireName returns an error for an object without a name.
func requireName(obj runtime.Object) error {
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

// A filteringStore is a [storage.Interface] that applies a filter to lists and watches.
type filteringStore struct {
	storage.Interface
	filter *undecodableFilter
	kv     clientv3.KV
	prefix string // of all keys of the resource
}

// GuaranteedUpdate reads the object itself if the watch cache is known to be behind.
func (s *filteringStore) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, current(ctx, cached))
}

// Delete reads the object itself if the watch cache is known to be behind.
func (s *filteringStore) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
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

func (s *filteringStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(context.WithValue(ctx, filterKey{}, s.filter), key, opts)
}

func (s *filteringStore) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
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
func (s *filteringStore) report(ctx context.Context, item skippedItem) {
	key := "unknown"
	resp, err := s.kv.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(item.rev), clientv3.WithMaxModRev(item.rev))
	if err == nil && len(resp.Kvs) > 0 {
		key = string(resp.Kvs[0].Key)
	}
	s.filter.report(key, item.rev, item.err)
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
