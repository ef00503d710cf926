package txn

import (
	"context"
	"math"
	"reflect"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// HasWatchCache reports whether a resource is served from memory.
func (b *Backend) HasWatchCache(gr schema.GroupResource) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.resources[gr].cache.Load() != nil
}

// Recalls returns what this process would take an index key's value for.
func (b *Backend) Recalls(kind, id string) string {
	key, _ := (&Tx{main: &resource{root: b.root}}).indexKey(kind, id)
	last, _ := b.revisions.get(key)
	if last.kv == nil {
		return ""
	}
	return string(last.kv.Value)
}

// Mistake has this process take an index key for having a value, or for
// missing if that is "", whatever it learns.
func (b *Backend) Mistake(kind, id, value string) {
	key, _ := (&Tx{main: &resource{root: b.root}}).indexKey(kind, id)
	wrong := observation{rev: math.MaxInt64}
	if value != "" {
		wrong.kv = &mvccpb.KeyValue{Value: []byte(value), ModRevision: 1}
	}
	b.revisions.cache.Add(key, wrong)
}

// FreezeCache has the planners of this backend see an object as the watch cache
// has it now, forever.
func (b *Backend) FreezeCache(gr schema.GroupResource, name string, obj runtime.Object) error {
	r, path, _, err := b.locate(gr, "", name)
	if err != nil {
		return err
	}
	cache := r.cache.Load()
	if _, err := cache.get(context.Background(), path, obj); err != nil {
		return err
	}
	r.cache.Store(&watchCache{&frozen{cache.Interface, path, obj}})
	return nil
}

type frozen struct {
	storage.Interface
	path string
	obj  runtime.Object
}

func (f *frozen) Get(ctx context.Context, path string, opts storage.GetOptions, into runtime.Object) error {
	if path != f.path {
		return f.Interface.Get(ctx, path, opts, into)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(f.obj).Elem())
	return nil
}

// Unstreamed has a scan read from an etcd that cannot stream, in small pages.
func (s *Scan) Unstreamed(page int64) {
	s.kv, s.page = unstreamed{s.kv}, page
}

type unstreamed struct{ clientv3.KV }

func (unstreamed) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return nil, status.Error(codes.Unimplemented, "unknown method RangeStream")
}
