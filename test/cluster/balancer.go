package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout   = time.Second
	probeInterval = time.Second
	probeTimeout  = 2 * time.Second
)

// Balance forwards the connections of l in turn to the ready backends (host:port), until ctx ends.
// It replaces the Service of a real cluster, because EndpointSlices cannot contain loopback
// addresses. TLS passes through untouched. A connection is closed if no backend is ready.
func Balance(ctx context.Context, l net.Listener, backends []string, ready func(ctx context.Context, addr string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()

	b := balancer{backends: backends, up: make([]atomic.Bool, len(backends))}
	var open sync.WaitGroup
	defer open.Wait()
	var probed sync.WaitGroup
	for i := range backends {
		probed.Add(1)
		open.Go(func() { b.probe(ctx, i, ready, probed.Done) })
	}
	probed.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		open.Go(func() { b.serve(ctx, conn) })
	}
}

// Readyz returns the check of backends that serve /readyz with a certificate of the authority in
// caFile.
func Readyz(caFile string) (func(ctx context.Context, addr string) error, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", caFile)
	}
	return func(ctx context.Context, addr string) error { return get(ctx, "https://"+addr+"/readyz", config) }, nil
}

type balancer struct {
	backends []string
	next     atomic.Uint64
	up       []atomic.Bool // by backend
}

// probe keeps up[i] current, and calls first once it is known.
func (b *balancer) probe(ctx context.Context, i int, ready func(context.Context, string) error, first func()) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		b.up[i].Store(ready(probe, b.backends[i]) == nil)
		cancel()
		if first != nil {
			first()
			first = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (b *balancer) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	backend := b.dial(ctx)
	if backend == nil {
		return
	}
	defer backend.Close()
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		backend.Close()
	})
	defer stop()

	var both sync.WaitGroup
	both.Go(func() { forward(backend, client) })
	both.Go(func() { forward(client, backend) })
	both.Wait()
}

// dial connects to the next backend that is ready and accepts; nil if no backend does.
func (b *balancer) dial(ctx context.Context) net.Conn {
	first := int(b.next.Add(1))
	for n := range b.backends {
		i := (first + n) % len(b.backends)
		if !b.up[i].Load() {
			continue
		}
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", b.backends[i])
		if err == nil {
			return conn
		}
		b.up[i].Store(false) // until the next probe
	}
	return nil
}

// forward copies until src ends and then passes the end on, so that a half-closed connection keeps
// working the other way.
func forward(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}
