package txn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"sync"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/tracing"
)

// decorator returns the decorator of a resource's storage. It does the same as newETCD3Storage and
// StorageWithCacher of k8s.io/apiserver v0.37, but writes through a client of this package, which
// these two cannot be given. A test fails when they change upstream.
func (b *Backend) decorator(r *resource, watchCached bool) generic.StorageDecorator {
	return func(c *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		raw, etcd, destroyRaw, err := newRawStorage(c, resourcePrefix, newFunc, newListFunc)
		if err != nil {
			return nil, nil, err
		}
		r.etcd.Store(etcd.Client)
		s, destroy := raw, sync.OnceFunc(destroyRaw)
		if watchCached {
			cached, err := cacher.NewCacherFromConfig(cacher.Config{
				Storage: raw, Versioner: versioner, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
				ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, NewFunc: newFunc, NewListFunc: newListFunc,
				GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec,
			})
			if err != nil {
				destroyRaw()
				return nil, nil, err
			}
			delegator := cacher.NewCacheDelegator(cached, raw)
			s = delegator
			destroy = sync.OnceFunc(func() {
				delegator.Stop()
				cached.Stop()
				destroyRaw()
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

func newRawStorage(c *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, *kubernetes.Client, func(), error) {
	cli, err := dial(c.Transport)
	if err != nil {
		return nil, nil, nil, err
	}
	cli.KV = sieveKV{etcd3.NewETCDLatencyTracker(&boundKV{KV: cli.KV, conn: cli.ActiveConnection()})}
	cli.Watcher = sieveWatcher{cli.Watcher}
	cli.Kubernetes = &client{Interface: cli.Kubernetes, kv: cli.KV}

	var compactor etcd3.Compactor // a nil interface without compaction
	stopCompactor := func() {}
	if c.CompactionInterval != 0 { // one for each process and endpoint
		running := etcd3.StartCompactorPerEndpoint(cli.Client, c.CompactionInterval)
		compactor, stopCompactor = running, running.Stop
	}
	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	decoder := etcd3.NewDefaultDecoder(c.Codec, versioner)
	unsafeDelete := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if unsafeDelete {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	decoder = sieveDecoder{decoder}
	raw, err := etcd3.New(cli, compactor, c.Codec, newFunc, newListFunc, c.Prefix, resourcePrefix, c.GroupResource, transformer, c.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		stopCompactor()
		return nil, nil, nil, errors.Join(err, cli.Close())
	}
	var s storage.Interface = &sieveStore{
		Interface: raw, kv: cli.KV, prefix: path.Join("/", c.Prefix, resourcePrefix) + "/",
		sieve: &sieve{resource: c.GroupResource, codec: c.Codec, transformer: transformer, newFunc: newFunc, known: map[string]int64{}},
	}
	if unsafeDelete {
		s = etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, c.GroupResource)
	}
	return s, cli, func() {
		stopCompactor()
		raw.Close()
		_ = cli.Close()
	}, nil
}

// clientLogger is shared, because otherwise each client would create its own.
var clientLogger = sync.OnceValue(func() *zap.Logger {
	l, err := logutil.CreateDefaultZapLogger(zap.ErrorLevel)
	if err != nil {
		return zap.NewNop()
	}
	return l.Named("etcd-client")
})

const dialTimeout = 20 * time.Second

var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// clientMetrics returns the etcd client metrics that the factory package has registered.
var clientMetrics = sync.OnceValue(func() *grpcprom.ClientMetrics {
	m := grpcprom.NewClientMetrics()
	var have prometheus.AlreadyRegisteredError
	if err := legacyregistry.Registerer().Register(m); errors.As(err, &have) {
		if registered, ok := have.ExistingCollector.(*grpcprom.ClientMetrics); ok {
			return registered
		}
	}
	return m
})

func dial(c storagebackend.TransportConfig) (*kubernetes.Client, error) {
	cfg := clientv3.Config{
		Endpoints: c.ServerList, Logger: clientLogger(), DialTimeout: dialTimeout, DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		DialOptions: []grpc.DialOption{
			// Not from upstream: reconnect soon after etcd returns, instead of after up to two
			// minutes.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
			grpc.WithChainUnaryInterceptor(clientMetrics().UnaryClientInterceptor()),
			grpc.WithChainStreamInterceptor(clientMetrics().StreamClientInterceptor()),
			grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
				otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(c.TracerProvider))),
		},
	}
	if c.CertFile != "" || c.KeyFile != "" || c.TrustedCAFile != "" {
		info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.TrustedCAFile}
		var err error
		if cfg.TLS, err = info.ClientConfig(); err != nil {
			return nil, err
		}
	}
	if c.EgressLookup != nil {
		dialEgress, err := c.EgressLookup(egressselector.Etcd.AsNetworkContext())
		if err != nil {
			return nil, err
		}
		if dialEgress != nil {
			cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				if u, err := url.Parse(addr); err == nil && u.Host != "" {
					addr = u.Host
				}
				return dialEgress(ctx, "tcp", addr)
			}))
		}
	}
	cli, err := kubernetes.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	for conn := cli.ActiveConnection(); ; {
		state := conn.GetState()
		if state == connectivity.Ready {
			return cli, nil
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return nil, errors.Join(fmt.Errorf("etcd connection not ready: %w", ctx.Err()), cli.Close())
		}
	}
}
