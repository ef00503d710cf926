// Package link connects a network stack to a datagram socket that carries Ethernet frames.
package link

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"k8s.io/utils/clock"
)

const (
	// MTU is the largest packet of the network layer, in bytes.
	MTU = 1500
	// maxFrame is the size of the buffer for one frame. Longer ones are cut, and then invalid.
	maxFrame = 64 << 10
	// maxWait is the time for which a full socket delays a frame, and sendPause the time between
	// tries. After maxWait, frames are dropped at once until the peer reads again.
	maxWait   = 100 * time.Millisecond
	sendPause = 50 * time.Microsecond
)

// Link is one end of a wire.
type Link struct {
	*channel.Endpoint // only the properties of a link; its queue is not used
	conn              *net.UnixConn
	raw               syscall.RawConn

	mu      sync.Mutex
	stalled bool // the peer does not read
}

// New returns the end of a wire with the Ethernet address mac, and the endpoint for a stack.
func New(conn *net.UnixConn, mac net.HardwareAddr) (*Link, stack.LinkEndpoint, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	l := &Link{Endpoint: channel.New(0, MTU, tcpip.LinkAddress(mac)), conn: conn, raw: raw}
	// The socket does not corrupt data.
	l.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	l.SupportedGSOKind = stack.GVisorGSOSupported
	return l, ethernet.New(l), nil
}

// Run delivers the frames of the peer that admit accepts, until the socket is closed.
func (l *Link) Run(admit func(frame []byte) bool) error {
	frame := make([]byte, maxFrame)
	for {
		n, err := l.conn.Read(frame)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !admit(frame[:n]) {
			continue
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame[:n])})
		l.InjectInbound(0, pkt)
		pkt.DecRef()
	}
}

// WritePackets implements stack.LinkWriter. A peer that does not read loses packets, and delays the
// others for a bounded time.
func (l *Link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		view := pkt.ToView()
		err := l.send(view.AsSlice())
		view.Release()
		switch {
		case errors.Is(err, net.ErrClosed):
			return i, &tcpip.ErrClosedForSend{}
		case err != nil:
			return i, &tcpip.ErrNoBufferSpace{}
		}
	}
	return pkts.Len(), nil
}

// send sends a frame, and waits a moment if the socket is full.
func (l *Link) send(frame []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write(frame, false)
	if err == nil {
		l.stalled = false
	}
	if !isFull(err) || l.stalled {
		return err
	}
	clk := clock.RealClock{}
	deadline := clk.Now().Add(maxWait)
	_ = l.conn.SetWriteDeadline(deadline)
	defer func() { _ = l.conn.SetWriteDeadline(time.Time{}) }()
	for isFull(err) && clk.Now().Before(deadline) {
		if errors.Is(err, syscall.ENOBUFS) {
			clk.Sleep(sendPause)
		}
		err = l.write(frame, true)
	}
	l.stalled = err != nil
	return err
}

// isFull reports whether a socket was full: Linux returns EAGAIN, and macOS ENOBUFS, after which it
// does not report when there is room.
func isFull(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOBUFS)
}

// write tries to send a frame. If wait is set, it tries again when the system reports that there is
// room, until the deadline of the socket.
func (l *Link) write(frame []byte, wait bool) error {
	var err error
	if ended := l.raw.Write(func(fd uintptr) bool {
		_, err = syscall.Write(int(fd), frame)
		return !wait || !errors.Is(err, syscall.EAGAIN)
	}); ended != nil && err == nil {
		return ended
	}
	return err
}
