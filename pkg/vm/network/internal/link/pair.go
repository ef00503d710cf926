package link

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// Sizes of the socket's buffers, in bytes. Virtualization.framework expects a receive buffer of
// at least twice the send buffer.
const (
	sendBuffer    = 1 << 20
	receiveBuffer = 4 << 20
)

// Pair returns both ends of a wire: a connected pair of datagram sockets.
func Pair() (ours *net.UnixConn, peer *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	first := os.NewFile(uintptr(fds[0]), "network")
	defer first.Close()
	peer = os.NewFile(uintptr(fds[1]), "guest network device")
	for _, fd := range fds {
		if err := setBuffers(fd); err != nil {
			_ = peer.Close()
			return nil, nil, err
		}
	}
	ours, err = Conn(first)
	if err != nil {
		_ = peer.Close()
		return nil, nil, err
	}
	return ours, peer, nil
}

func setBuffers(fd int) error {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer))
}

// Conn returns a connection of a copy of file's descriptor.
func Conn(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("%s is not a socket of the host", file.Name())
	}
	return unix, nil
}
