package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

// PortForward connects a stream to a TCP port in the guest of a pod's virtual machine. The guest
// agent connects to the guest's loopback interface. If none answers, the network of an isolated
// guest connects to its address. With tart's agent, which forwards ports by a command, the network
// comes first.
func (s *Sessions) PortForward(ctx context.Context, namespace, name string, port int32, stream io.ReadWriteCloser) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d is invalid; use a port from 1 to 65535", port)
	}
	slot, err := s.machineOf(namespace, name)
	if err != nil {
		return err
	}
	if slot.Phase == slots.Attached && slot.State.Isolated && (!slot.State.GuestReady || slot.State.GuestAgent == contract.GuestAgentTart) {
		connected, err := s.dial(ctx, slot.UID(), uint16(port), stream)
		if connected || !slot.State.GuestReady {
			return err
		}
	}
	return s.open(ctx, namespace, name, func(ctx context.Context, c guest.Agent) error {
		return c.Forward(ctx, uint16(port), stream)
	})
}

// dial connects stream to a TCP port of an isolated guest. It reports whether the guest accepted
// the connection.
func (s *Sessions) dial(ctx context.Context, uid string, port uint16, stream io.ReadWriteCloser) (connected bool, err error) {
	release, err := s.acquire(uid)
	if err != nil {
		return false, err
	}
	defer release()
	conn, err := s.slots.Dial(ctx, uid, port)
	if errors.Is(err, slots.ErrNotHere) {
		return false, ErrVMStopped
	}
	if err != nil {
		return false, fmt.Errorf("%w, and its network does not connect either: %w", guest.ErrSilent, err)
	}
	return true, join(ctx, conn, stream)
}

// join copies data in both directions until the guest ends its direction, or either fails.
func join(ctx context.Context, guest net.Conn, stream io.ReadWriteCloser) error {
	stop := context.AfterFunc(ctx, func() { _ = guest.Close() })
	defer stop()
	defer guest.Close()
	go func() { // ends with the stream
		_, err := io.Copy(guest, stream)
		half, ok := guest.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			_ = guest.Close()
		}
	}()
	_, err := io.Copy(stream, guest)
	if errors.Is(err, net.ErrClosed) {
		return nil // the client has ended it
	}
	return err
}
