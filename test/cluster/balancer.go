package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = time.Second
	// A replica that refused a connection is asked last for this long.
	restAfterRefusal = 2 * time.Second
)

// Balance forwards the connections of l to the backends (host:port) in turn, skipping those that refuse, until ctx ends. It is what a
// Service is in a real cluster: EndpointSlices admit no loopback address. TLS passes through untouched.
func Balance(ctx context.Context, l net.Listener, backends []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()

	b := balancer{backends: backends, refusedAt: make([]atomic.Int64, len(backends))}
	var open sync.WaitGroup
	defer open.Wait()
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

type balancer struct {
	backends  []string
	next      atomic.Uint64
	refusedAt []atomic.Int64 // Unix nanoseconds, by backend
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

// dial connects to the next backend that accepts, those that refused a moment ago last.
func (b *balancer) dial(ctx context.Context) net.Conn {
	first := int(b.next.Add(1))
	var resting []int
	try := func(i int) net.Conn {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", b.backends[i])
		if err != nil {
			b.refusedAt[i].Store(time.Now().UnixNano())
			return nil
		}
		return conn
	}
	for n := range b.backends {
		i := (first + n) % len(b.backends)
		if time.Since(time.Unix(0, b.refusedAt[i].Load())) < restAfterRefusal {
			resting = append(resting, i)
			continue
		}
		if conn := try(i); conn != nil {
			return conn
		}
	}
	for _, i := range resting {
		if conn := try(i); conn != nil {
			return conn
		}
	}
	return nil
}

// forward copies until src ends and then passes the end on, so that a half-closed connection keeps working the other way.
func forward(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}
