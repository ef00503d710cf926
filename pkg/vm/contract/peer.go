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

// ErrForeignSocket means that the socket does not belong to the runner of the slot's owner, so its
// responses are not trusted.
var ErrForeignSocket = errors.New("the socket does not belong to the slot's owner")

// peer is the process at the other end of a unix socket. For a client, it is the process that
// called listen, as it was at that time.
type peer struct{ uid, pid int }

// Dial connects to the slot's runner. It returns ErrForeignSocket unless the socket belongs to the
// owner of the slot's directory, has mode 0600, and is served by a process of that user.
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
		return nil, nil, fmt.Errorf("%w: %s has mode %04o, must be 0600", ErrForeignSocket, d.SocketPath(), info.Mode().Perm())
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

// KillRunner kills the process that listens at the slot's socket, in any state; its VM ends with
// it. The kernel identifies the process, so a process that reuses the PID is safe.
func (d SlotDir) KillRunner(ctx context.Context) error {
	conn, p, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if p.pid <= 1 || p.pid == os.Getpid() {
		return fmt.Errorf("the runner at %s is not a separate process (pid %d)", d.SocketPath(), p.pid)
	}
	return syscall.Kill(p.pid, syscall.SIGKILL)
}

// ownListener accepts only connections of this process' user and of root.
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

// peerOf returns the process at the other end, as reported by the kernel.
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
