package txn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
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

	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/tracing"
)

// clientLogger is shared, because otherwise each client would create its own.
var clientLogger = sync.OnceValue(func() *zap.Logger {
	l, err := logutil.CreateDefaultZapLogger(zap.ErrorLevel)
	if err != nil {
		return zap.NewNop()
	}
	return l.Named("etcd-client")
})

const (
	dialTimeout = 20 * time.Second

	// A connection is closed if etcd does not acknowledge data, or a ping after keepaliveTime
	// without data, for keepaliveTimeout. Until then, a member that has vanished delays the
	// requests that were sent to it. gRPC allows no shorter keepaliveTime.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 2 * time.Second
)

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

// dial returns a connected client of etcd. It follows newETCD3Client and blockUntilReady, but
// notices sooner that a member has vanished, reconnects soon after etcd returns, instead of after
// up to two minutes, and counts connections.
func dial(c storagebackend.TransportConfig, connections *connectionCounter) (*kubernetes.Client, error) {
	cfg := clientv3.Config{
		Endpoints: c.ServerList, Logger: clientLogger(), DialTimeout: dialTimeout, DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
			grpc.WithChainUnaryInterceptor(clientMetrics().UnaryClientInterceptor()),
			grpc.WithChainStreamInterceptor(clientMetrics().StreamClientInterceptor()),
			grpc.WithStatsHandler(connections),
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
