package txn

import (
	"errors"
	"path"
	"sync"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// The functions of this file and of dial.go follow functions of k8s.io/apiserver, which cannot be
// given a client of etcd. TestUpstreamFunctions names these functions, and fails when one of them
// changes.

// decorator returns the decorator of a resource's storage. It follows StorageWithCacher, and calls
// the planner of the resource.
func (b *Backend) decorator(r *resource, watchCached bool) generic.StorageDecorator {
	return func(c *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		raw, etcd, closeRaw, err := r.newRawStorage(c, resourcePrefix, newFunc, newListFunc)
		if err != nil {
			return nil, nil, err
		}
		r.etcd.Store(etcd.Client)
		s, destroy := raw, sync.OnceFunc(closeRaw)
		if watchCached {
			cached, err := cacher.NewCacherFromConfig(cacher.Config{
				Storage: raw, Versioner: versioner, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
				ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, NewFunc: newFunc, NewListFunc: newListFunc,
				GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec,
			})
			if err != nil {
				closeRaw()
				return nil, nil, err
			}
			delegator := cacher.NewCacheDelegator(cached, raw)
			s = delegator
			destroy = sync.OnceFunc(func() {
				delegator.Stop()
				cached.Stop()
				closeRaw()
			})
			r.cache.Store(&watchCache{delegator})
		}
		if planner := b.planners[r.gr]; planner != nil {
			b.watchOnce.Do(func() { go b.revisions.watch(etcd.Client, r.root+indexPrefix) })
			planned := &store{Interface: s, backend: b, resource: r, client: etcd.Kubernetes.(*client), planner: planner}
			r.store.Store(planned)
			s = planned
		}
		return s, destroy, nil
	}
}

// newRawStorage returns the storage of a resource without a watch cache, its client, and a function
// that closes both. It follows newETCD3Storage, but writes through a client of this package and
// omits objects that cannot be decoded.
func (r *resource) newRawStorage(c *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, *kubernetes.Client, func(), error) {
	etcd, err := dial(c.Transport, &r.connections)
	if err != nil {
		return nil, nil, nil, err
	}
	etcd.KV = filteringKV{etcd3.NewETCDLatencyTracker(&boundKV{KV: etcd.KV, conn: etcd.ActiveConnection()})}
	etcd.Watcher = filteringWatcher{etcd.Watcher}
	etcd.Kubernetes = &client{Interface: etcd.Kubernetes, kv: etcd.KV}

	var compactor etcd3.Compactor // a nil interface without compaction
	stopCompactor := func() {}
	if c.CompactionInterval != 0 { // one for each process and endpoint
		running := etcd3.StartCompactorPerEndpoint(etcd.Client, c.CompactionInterval)
		compactor, stopCompactor = running, running.Stop
	}
	transformer, decoder := r.transformer, etcd3.NewDefaultDecoder(c.Codec, versioner)
	unsafeDelete := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if unsafeDelete {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	raw, err := etcd3.New(etcd, compactor, c.Codec, newFunc, newListFunc, c.Prefix, resourcePrefix, c.GroupResource, transformer, c.LeaseManagerConfig, filteringDecoder{decoder}, versioner)
	if err != nil {
		stopCompactor()
		return nil, nil, nil, errors.Join(err, etcd.Close())
	}
	var s storage.Interface = &filteringStore{
		Interface: raw, kv: etcd.KV, prefix: path.Join("/", c.Prefix, resourcePrefix) + "/",
		filter: &undecodableFilter{resource: c.GroupResource, codec: c.Codec, transformer: transformer, newFunc: newFunc, known: map[string]int64{}},
	}
	if unsafeDelete {
		s = etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, c.GroupResource)
	}
	return s, etcd, func() {
		stopCompactor()
		raw.Close()
		_ = etcd.Close()
	}, nil
}
