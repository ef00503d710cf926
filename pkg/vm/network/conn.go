package network

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// settleTimeout is how long a closed connection waits for the guest to receive the rest.
	settleTimeout = time.Minute
	settlePoll    = 20 * time.Millisecond
	// halfOpen is how long a connection from the host lasts after the host has ended its direction.
	halfOpen = 5 * time.Minute
	// dnsBacklog is the number of DNS connections that wait to be accepted.
	dnsBacklog = 10
)

// tcpConn is a TCP connection with the guest. The stack keeps a closed connection, with its
// buffers, until the guest has received everything, which a guest can avoid forever. Therefore
// Close waits for the guest, and then resets the connection. So every connection that has memory
// counts against a limit.
type tcpConn struct {
	*gonet.TCPConn
	endpoint tcpip.Endpoint
	network  *Network
	closing  sync.Once
}

func (n *Network) newConn(queue *waiter.Queue, endpoint tcpip.Endpoint) *tcpConn {
	return &tcpConn{TCPConn: gonet.NewTCPConn(queue, endpoint), endpoint: endpoint, network: n}
}

// Close implements net.Conn.
func (c *tcpConn) Close() error {
	c.closing.Do(func() {
		_ = c.TCPConn.Close()
		c.settle()
	})
	return nil
}

// reset ends the connection at once. The guest sees that it has not received everything.
func (c *tcpConn) reset() {
	c.closing.Do(func() {
		c.endpoint.Abort()
		_ = c.TCPConn.Close()
	})
}

// settle waits until the guest has received everything.
func (c *tcpConn) settle() {
	timeout := time.NewTimer(c.network.settleTimeout)
	defer timeout.Stop()
	poll := time.NewTicker(settlePoll)
	defer poll.Stop()
	for c.unsettled() {
		select {
		case <-c.network.ctx.Done():
			return // the stack closes
		case <-timeout.C:
			c.endpoint.Abort()
			return
		case <-poll.C:
		}
	}
}

// unsettled reports whether the guest has not received everything. The first two states of a closed
// connection are those in which data waits before the end.
func (c *tcpConn) unsettled() bool {
	switch tcp.EndpointState(c.endpoint.State()) {
	case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		return true
	default:
		return false
	}
}

// hostConn is a connection that the host has made to the guest.
type hostConn struct{ *tcpConn }

// CloseWrite ends the direction to the guest. The other one ends later, but in a bounded time.
func (c hostConn) CloseWrite() error {
	time.AfterFunc(c.network.halfOpen, c.reset)
	return c.tcpConn.CloseWrite()
}

// Dial connects to a TCP port of the guest.
func (n *Network) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	var queue waiter.Queue
	endpoint, failed := n.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if failed != nil {
		return nil, errors.New(failed.String())
	}
	conn := hostConn{n.newConn(&queue, endpoint)}
	if err := connect(ctx, &queue, endpoint, port); err != nil {
		conn.reset()
		return nil, err
	}
	return conn, nil
}

func connect(ctx context.Context, queue *waiter.Queue, endpoint tcpip.Endpoint, port uint16) error {
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	if failed := endpoint.Bind(tcpip.FullAddress{NIC: nic, Addr: gatewayAddress}); failed != nil {
		return errors.New(failed.String())
	}
	failed := endpoint.Connect(tcpip.FullAddress{NIC: nic, Addr: guestAddress, Port: port})
	if _, started := failed.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
		}
		failed = endpoint.LastError()
	}
	if failed != nil {
		return &net.OpError{Op: "connect", Net: "tcp", Err: errors.New(failed.String())}
	}
	return nil
}

// listener accepts TCP connections of the guest to a port of the gateway.
type listener struct {
	network  *Network
	queue    waiter.Queue
	endpoint tcpip.Endpoint
}

func (n *Network) listen(port uint16) (*listener, error) {
	l := &listener{network: n}
	var failed tcpip.Error
	if l.endpoint, failed = n.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &l.queue); failed != nil {
		return nil, errors.New(failed.String())
	}
	failed = l.endpoint.Bind(tcpip.FullAddress{NIC: nic, Addr: gatewayAddress, Port: port})
	if failed == nil {
		failed = l.endpoint.Listen(dnsBacklog)
	}
	if failed != nil {
		l.endpoint.Close()
		return nil, errors.New(failed.String())
	}
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents)
	l.queue.EventRegister(&entry)
	defer l.queue.EventUnregister(&entry)
	for {
		endpoint, queue, failed := l.endpoint.Accept(nil)
		if failed == nil {
			return l.network.newConn(queue, endpoint), nil
		}
		if _, empty := failed.(*tcpip.ErrWouldBlock); !empty {
			return nil, errors.New(failed.String())
		}
		select {
		case <-l.network.ctx.Done():
			return nil, net.ErrClosed
		case <-ready:
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.endpoint.Close()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr {
	return &net.TCPAddr{IP: Gateway.AsSlice(), Port: dnsPort}
}
