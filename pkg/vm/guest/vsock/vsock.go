//go:build darwin || linux

// Package vsock listens for the host inside a guest.
package vsock

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// Listen listens on a vsock port of this guest for connections of its host. Any process may connect
// to the port, so connections of other peers, such as users of the guest, are closed at once.
func Listen(port uint32) (net.Listener, error) {
	s, err := socket.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, "vsock", nil)
	if err != nil {
		return nil, fmt.Errorf("vsock: %w; check that this virtual machine has a socket device", err)
	}
	if err := s.Bind(&unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("vsock port %d: %w", port, err)
	}
	if err := s.Listen(unix.SOMAXCONN); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("vsock port %d: %w", port, err)
	}
	return &listener{socket: s, port: port}, nil
}

type listener struct {
	socket *socket.Conn
	port   uint32
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		s, peer, err := l.socket.Accept(context.Background(), 0)
		if err != nil {
			return nil, err
		}
		if err := closeOnExec(s); err != nil {
			_ = s.Close()
			continue
		}
		if from, ok := peer.(*unix.SockaddrVM); ok && from.CID == unix.VMADDR_CID_HOST {
			return &conn{Conn: s, local: addr{cid: unix.VMADDR_CID_ANY, port: l.port}, remote: addr{cid: from.CID, port: from.Port}}, nil
		}
		_ = s.Close()
	}
}

// closeOnExec keeps commands of the guest from inheriting a connection. accept(2) on macOS cannot
// set the flag.
func closeOnExec(s *socket.Conn) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { syscall.CloseOnExec(int(fd)) })
}

func (l *listener) Close() error   { return l.socket.Close() }
func (l *listener) Addr() net.Addr { return addr{cid: unix.VMADDR_CID_ANY, port: l.port} }

type conn struct {
	*socket.Conn
	local, remote addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

type addr struct{ cid, port uint32 }

func (addr) Network() string  { return "vsock" }
func (a addr) String() string { return fmt.Sprintf("vsock:%d:%d", a.cid, a.port) }
