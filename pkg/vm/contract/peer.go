package contract

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// ErrForeignSocket means that what is at a slot's socket is not the runner of the
// slot's owner: nothing it says counts.
var ErrForeignSocket = errors.New("the socket is not of the slot's owner")

// peer is the process at the other end of a unix socket. For whoever connects, it
// is the one that listens, as it was when it began to.
type peer struct{ uid, pid int }

// Dial connects to the slot's runner. Anything else at the socket is refused with
// ErrForeignSocket: it must be a socket, of the owner of the slot's directory, that
// no one else may open, and so must be the process that listens there.
func (d SlotDir) Dial(ctx context.Context) (net.Conn, error) {
	conn, _, err := d.dial(ctx)
	return conn, err
}

func (d SlotDir) dial(ctx context.Context) (net.Conn, *peer, error) {
	owner, err := d.owner()
	if err != nil {
		return nil, nil, err
	}
	info, err := os.Lstat(d.SocketPath())
	if err != nil {
		return nil, nil, err
	}
	switch uid := ownerOf(info); {
	case info.Mode().Type() != fs.ModeSocket:
		return nil, nil, fmt.Errorf("%w: %s is a %s", ErrForeignSocket, d.SocketPath(), info.Mode().Type())
	case uid != owner:
		return nil, nil, fmt.Errorf("%w: %s belongs to user %d, the slot to user %d", ErrForeignSocket, d.SocketPath(), uid, owner)
	case info.Mode().Perm()&0o077 != 0:
		return nil, nil, fmt.Errorf("%w: %s has mode %04o, it must be 0600", ErrForeignSocket, d.SocketPath(), info.Mode().Perm())
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.SocketPath())
	if err != nil {
		return nil, nil, err
	}
	p, err := peerOf(conn)
	if err == nil && p.uid != owner {
		err = fmt.Errorf("%w: process %d of user %d listens at %s, the slot belongs to user %d", ErrForeignSocket, p.pid, p.uid, d.SocketPath(), owner)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, p, nil
}

func (d SlotDir) owner() (int, error) {
	info, err := os.Lstat(string(d))
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 0, fmt.Errorf("%w: slot %s is a %s", ErrForeignSocket, d, info.Mode().Type())
	}
	return ownerOf(info), nil
}

func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// KillRunner ends the process that listens at the slot's socket, whatever state it
// is in; its VM ends with it. The kernel names the process, so that none is hit that
// merely got the number of one that is gone.
func (d SlotDir) KillRunner(ctx context.Context) error {
	conn, p, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if p.pid <= 1 || p.pid == os.Getpid() {
		return fmt.Errorf("the runner at %s is no process of its own (pid %d)", d.SocketPath(), p.pid)
	}
	return syscall.Kill(p.pid, syscall.SIGKILL)
}

// ownListener serves this process' own user, and root.
type ownListener struct{ net.Listener }

func (l ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if p, err := peerOf(conn); err == nil && (p.uid == os.Geteuid() || p.uid == 0) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// peerOf asks the kernel who is at the other end.
func peerOf(conn net.Conn) (p *peer, err error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	if controlErr := raw.Control(func(fd uintptr) { p, err = peerOfSocket(int(fd)) }); controlErr != nil {
		return nil, controlErr
	}
	return p, err
}
