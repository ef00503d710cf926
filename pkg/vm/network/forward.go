package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

var (
	errTooManyTCP = fmt.Errorf("the guest has %d TCP connections, and the limit is %d; close one first", maxTCP, maxTCP)
	errTooManyUDP = fmt.Errorf("the guest has %d UDP flows, and the limit is %d; a flow ends after %s without packets", maxUDP, maxUDP, udpIdle)
)

const (
	// dialTimeout bounds the connection to the outside.
	dialTimeout = 10 * time.Second
	// keepalive is the idle time after which the stack checks whether the guest still has a
	// connection, because a guest that reboots forgets it.
	keepalive = time.Minute
	// udpIdle ends a UDP flow without packets, and queryIdle one to a port of questions and answers
	// (DNS, NTP).
	udpIdle   = time.Minute
	queryIdle = 10 * time.Second
	// copyBuffer is the size of a buffer between two connections, in bytes.
	copyBuffer = 32 << 10
	// maxDatagram is the limit of a UDP datagram, in bytes.
	maxDatagram = 64 << 10
)

// destination returns the address to which a packet of the guest goes. The stack calls it local.
func destination(id stack.TransportEndpointID) netip.AddrPort {
	address, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	return netip.AddrPortFrom(address, id.LocalPort)
}

// forwardTCP makes the connection to the outside first, so that the guest sees whether it failed.
func (n *Network) forwardTCP(request *tcp.ForwarderRequest) {
	to := destination(request.ID())
	if err := n.check("tcp", to); err != nil {
		n.refused(err)
		request.Complete(true)
		return
	}
	if !n.admitsConnection() {
		request.Complete(false) // the guest sends it again
		return
	}
	if !acquire(n.tcp) {
		n.refused(errTooManyTCP)
		request.Complete(true)
		return
	}
	defer func() { <-n.tcp }()
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	outside, err := n.config.Outside.Dial(ctx, "tcp", to)
	cancel()
	if err != nil {
		request.Complete(true)
		return
	}
	defer outside.Close()
	var queue waiter.Queue
	endpoint, failed := request.CreateEndpoint(&queue)
	request.Complete(false)
	if failed != nil {
		return
	}
	idle := tcpip.KeepaliveIdleOption(keepalive)
	_ = endpoint.SetSockOpt(&idle)
	endpoint.SocketOptions().SetKeepAlive(true)
	n.join(n.newConn(&queue, endpoint), outside)
}

// join copies data in both directions until both have ended, or the network closes. One direction
// can end first. If a connection breaks, the other one is reset: its peer must not take the part
// that it has received for the whole.
func (n *Network) join(guest *tcpConn, outside net.Conn) {
	resetBoth := func() {
		guest.reset()
		reset(outside)
	}
	stop := context.AfterFunc(n.ctx, resetBoth)
	defer stop()
	var broken atomic.Bool
	var copies sync.WaitGroup
	pipe := func(to, from net.Conn) {
		readErr, writeErr := transfer(to, from)
		switch {
		case writeErr != nil:
			broken.Store(true) // the other direction still has what was received before
		case readErr != nil || broken.Load():
			resetBoth()
		default:
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		}
	}
	copies.Go(func() { pipe(outside, guest) })
	copies.Go(func() { pipe(guest, outside) })
	copies.Wait()
	if broken.Load() {
		resetBoth()
	}
	_ = outside.Close()
	_ = guest.Close()
}

// transfer copies data until from ends or one of both fails.
func transfer(to io.Writer, from io.Reader) (readErr, writeErr error) {
	buffer := make([]byte, copyBuffer)
	for {
		size, err := from.Read(buffer)
		if size > 0 {
			if _, err := to.Write(buffer[:size]); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// reset closes a connection so that its peer sees that it has not received everything.
func reset(conn net.Conn) {
	if c, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}

// forwardUDP starts the flow of a packet that belongs to none. If it returns false, the stack
// answers with "port unreachable".
func (n *Network) forwardUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if id.RemoteAddress != guestAddress {
		return true // the stack hears its own broadcasts
	}
	if err := n.check("udp", destination(id)); err != nil {
		n.refused(err)
		return false
	}
	if n.admitsConnection() {
		n.flows.HandlePacket(id, pkt)
	}
	return true
}

// startFlow starts the UDP flow of a request, which was checked.
func (n *Network) startFlow(request *udp.ForwarderRequest) {
	to := destination(request.ID())
	if !acquire(n.udp) {
		n.refused(errTooManyUDP)
		return
	}
	release := func() { <-n.udp }
	outside, err := n.config.Outside.Dial(n.ctx, "udp", to) // sends nothing
	if err != nil {
		release()
		return
	}
	var queue waiter.Queue
	endpoint, failed := request.CreateEndpoint(&queue)
	if failed != nil {
		_ = outside.Close()
		release()
		return
	}
	idle := udpIdle
	if port := to.Port(); port == dnsPort || port == ntpPort {
		idle = queryIdle
	}
	go func() {
		defer release()
		n.relay(gonet.NewUDPConn(&queue, endpoint), outside, idle)
	}()
}

// relay copies datagrams in both directions until the flow is idle.
func (n *Network) relay(guest, outside net.Conn, idle time.Duration) {
	closeBoth := func() {
		_ = guest.Close()
		_ = outside.Close()
	}
	stop := context.AfterFunc(n.ctx, closeBoth)
	defer stop()
	timer := time.AfterFunc(idle, closeBoth)
	defer timer.Stop()
	var copies sync.WaitGroup
	pipe := func(to, from net.Conn) {
		defer closeBoth()
		datagram := make([]byte, maxDatagram)
		for {
			size, err := from.Read(datagram)
			if err != nil {
				return
			}
			timer.Reset(idle)
			// The network may lose a datagram, and so may this flow.
			_, _ = to.Write(datagram[:size])
		}
	}
	copies.Go(func() { pipe(outside, guest) })
	copies.Go(func() { pipe(guest, outside) })
	copies.Wait()
}
