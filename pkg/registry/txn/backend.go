package txn

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// A Planner adds the companions that a write of its resource needs. It reads them with tx, adds
// their writes to tx, and may change new, but never old. old is nil when new is created; new is nil
// when old is deleted. Objects are of the internal version.
//
// A planner is called again whenever an object that it relied on has changed, so its only effects
// must be on tx and new. Its error, if any, is returned to the client. It must return the errors of
// the methods of tx unchanged, except that it may handle a companion that was not found.
type Planner func(ctx context.Context, tx *Tx, old, new runtime.Object) error

var versioner = storage.APIObjectVersioner{}

// A Backend is the set of resources in one etcd cluster that transactions may span. It is the
// [generic.RESTOptionsGetter] of their stores, with or without planners.
type Backend struct {
	delegate generic.RESTOptionsGetter
	planners map[schema.GroupResource]Planner
	uncached map[schema.GroupResource]bool
	codec    func(schema.GroupResource, runtime.Codec) runtime.Codec // nil for the codecs of the delegate

	pacer       *pacer    // nil for an unlimited write rate
	mainLocks   *keyLocks // of main objects; taken before the read
	commitLocks *keyLocks // of all written keys; taken before the commit
	revisions   *revisionCache
	watchOnce   sync.Once // starts the watch of the index keys for revisions

	mu        sync.RWMutex
	servers   []string
	root      string // the prefix of all keys, such as "/registry/"
	resources map[schema.GroupResource]*resource
}

// An Option changes a backend.
type Option func(*Backend)

// WithoutWatchCache serves resources from etcd. It is for resources with many, rarely read objects.
// They can still be watched.
func WithoutWatchCache(resources ...schema.GroupResource) Option {
	return func(b *Backend) {
		for _, gr := range resources {
			b.uncached[gr] = true
		}
	}
}

// WithCodec decorates the storage codec of each resource with wrap, for main objects and companions
// alike.
func WithCodec(wrap func(gr schema.GroupResource, codec runtime.Codec) runtime.Codec) Option {
	return func(b *Backend) { b.codec = wrap }
}

// NewBackend returns a backend of the resources for which delegate has options. Objects of a
// resource without a planner may still be companions.
func NewBackend(delegate generic.RESTOptionsGetter, planners map[schema.GroupResource]Planner, options ...Option) *Backend {
	b := &Backend{
		delegate:    delegate,
		planners:    planners,
		uncached:    map[schema.GroupResource]bool{},
		mainLocks:   newKeyLocks(),
		commitLocks: newKeyLocks(),
		revisions:   newRevisionCache(),
		resources:   map[schema.GroupResource]*resource{},
	}
	for _, option := range options {
		option(b)
	}
	return b
}

// resource has the storage parameters of a resource.
type resource struct {
	gr          schema.GroupResource
	kind        reflect.Type
	root        string // the prefix of all keys, such as "/registry/"
	prefix      string // the prefix of the resource below it, such as "/example.io/widgets"
	codec       runtime.Codec
	decoder     etcd3.Decoder
	transformer value.Transformer

	connections connectionCounter // of etcd

	etcd  atomic.Pointer[clientv3.Client] // nil until the resource has storage
	cache atomic.Pointer[watchCache]      // nil without a watch cache
	store atomic.Pointer[store]           // nil without a planner
}

// GetRESTOptions adds the resource to the backend.
func (b *Backend) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := b.delegate.GetRESTOptions(gr, example)
	if err != nil {
		return opts, err
	}
	if b.codec != nil {
		config := *opts.StorageConfig
		config.Codec = b.codec(gr, config.Codec)
		opts.StorageConfig = &config
	}
	r, err := b.add(gr, example, opts)
	if err != nil {
		return opts, err
	}
	opts.Decorator = b.decorator(r, !b.uncached[gr] && !isUndecorated(opts.Decorator))
	return opts, nil
}

func (b *Backend) add(gr schema.GroupResource, example runtime.Object, opts generic.RESTOptions) (*resource, error) {
	c := opts.StorageConfig
	root := strings.TrimSuffix(path.Join("/", c.Prefix), "/") + "/"
	prefix := path.Join("/", opts.ResourcePrefix)
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.resources[gr]; r != nil {
		return r, nil
	}
	if b.servers == nil {
		b.servers, b.root = c.Transport.ServerList, root
	}
	if !slices.Equal(b.servers, c.Transport.ServerList) || b.root != root {
		return nil, fmt.Errorf("txn: %s is stored in %v under %s, but a transaction cannot leave %v and %s: remove the override of its etcd servers", gr, c.Transport.ServerList, root, b.servers, b.root)
	}
	if strings.HasPrefix(prefix+"/", indexPrefix) || strings.HasPrefix("/"+indexPrefix, prefix+"/") {
		return nil, fmt.Errorf("txn: %s is stored under %s, which is for index keys", gr, prefix)
	}
	r := &resource{
		gr:          gr,
		kind:        reflect.TypeOf(example),
		root:        root,
		prefix:      prefix,
		codec:       c.Codec,
		decoder:     filteringDecoder{etcd3.NewDefaultDecoder(c.Codec, versioner)},
		transformer: c.Transformer,
	}
	if r.transformer == nil {
		r.transformer = identity.NewEncryptCheckTransformer()
	}
	b.resources[gr] = r
	return r, nil
}

func isUndecorated(decorator generic.StorageDecorator) bool {
	return decorator != nil && reflect.ValueOf(decorator).Pointer() == reflect.ValueOf(generic.UndecoratedStorage).Pointer()
}

// locate returns the path of an object in [storage.Interface] and its key in etcd.
func (b *Backend) locate(gr schema.GroupResource, namespace, name string) (r *resource, path, key string, err error) {
	b.mu.RLock()
	r = b.resources[gr]
	b.mu.RUnlock()
	if r == nil {
		return nil, "", "", fmt.Errorf("txn: %s is not a resource of the backend", gr)
	}
	prefix := r.prefix
	if namespace != "" {
		prefix = genericregistry.NamespaceKeyRootFunc(genericrequest.WithNamespace(context.Background(), namespace), prefix)
	}
	if path, err = genericregistry.NoNamespaceKeyFunc(context.Background(), prefix, name); err != nil {
		return nil, "", "", err
	}
	key, err = r.key(path)
	return r, path, key, err
}

// key returns the key in etcd of a path.
func (r *resource) key(path string) (string, error) {
	path, err := storage.PrepareKey(r.prefix, path, false)
	if err != nil {
		return "", err
	}
	return r.root + strings.TrimPrefix(path, "/"), nil
}

// watchCache is the storage that serves reads of a resource from memory.
type watchCache struct {
	storage.Interface
}

func (c *watchCache) ready() bool { return c != nil && c.ReadinessCheck() == nil }

// get reads a recent version of an object into into. The revision is 0 if the object did not exist.
func (c *watchCache) get(ctx context.Context, path string, into runtime.Object) (rev int64, err error) {
	if err := c.Get(ctx, path, storage.GetOptions{ResourceVersion: "0", IgnoreNotFound: true}, into); err != nil {
		return 0, err
	}
	// All readers of the cache share its objects.
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(into.DeepCopyObject()).Elem())
	version, err := versioner.ObjectResourceVersion(into)
	return int64(version), err
}
