// Package link connects a network stack to a datagram socket that carries Ethernet frames.
package link

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// MTU is the largest packet of the network layer, in bytes.
	MTU = 1500
	// maxFrame is the size of the buffer for one frame. Longer ones are cut, and then invalid.
	maxFrame = 64 << 10
	// maxWait is the time for which a full socket delays a frame, and sendPause the time between
	// tries. After maxWait, frames are dropped at once until the peer reads again.
	maxWait   = 20 * time.Millisecond
	sendPause = 50 * time.Microsecond
)

// Link is one end of a wire.
type Link struct {
	*channel.Endpoint // only the properties of a link; its queue is not used
	conn              *net.UnixConn
	raw               syscall.RawConn
	stalled           atomic.Bool
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

func (l *Link) send(frame []byte) error {
	for waited := time.Duration(0); ; waited += sendPause {
		var err error
		if closed := l.raw.Write(func(fd uintptr) bool {
			_, err = syscall.Write(int(fd), frame)
			return true
		}); closed != nil {
			return net.ErrClosed
		}
		if err == nil {
			l.stalled.Store(false)
			return nil
		}
		// Linux returns EAGAIN if the socket is full, and macOS ENOBUFS.
		full := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOBUFS)
		if !full || l.stalled.Load() || waited >= maxWait {
			l.stalled.Store(true)
			return err
		}
		time.Sleep(sendPause)
	}
}
