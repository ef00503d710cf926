package txn

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// A connectionCounter counts the connections of a client. A request on a new connection begins
// after the connection is counted.
type connectionCounter struct{ atomic.Int64 }

var _ stats.Handler = &connectionCounter{}

func (c *connectionCounter) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.Add(1)
	}
}

func (c *connectionCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

func (c *connectionCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return ctx
}

func (c *connectionCounter) HandleRPC(context.Context, stats.RPCStats) {}
