package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"

	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

const (
	// guestPatience is how long a session waits until the guest agent listens.
	guestPatience = 10 * time.Second
	// guestRetry is the time between two attempts to connect.
	guestRetry = 200 * time.Millisecond
)

var errVMStopped = errors.New("the virtual machine has stopped, or is stopping")

// machineOf returns the slot of a placeholder pod's virtual machine. A tenant can set the UID of
// another tenant's instance on a pod. Therefore the instance must be in the pod's namespace and
// name the pod, and the slot must hold that instance.
func (a *Agent) machineOf(namespace, name string) (slots.Status, error) {
	pod, err := a.node.Pods().Pods(namespace).Get(name)
	if err != nil {
		return slots.Status{}, errdefs.AsNotFound(err)
	}
	instance, err := a.ownerOf(pod)
	switch {
	case err != nil:
		return slots.Status{}, err
	case instance == nil:
		return slots.Status{}, errdefs.NotFoundf("pod %s is not the placeholder of a MacOSInstance on this Mac", name)
	}
	slot, ok := a.slots.Find(string(instance.UID))
	if !ok || slot.Spec.Namespace != namespace || slot.Spec.Name != instance.Name {
		return slots.Status{}, errdefs.NotFoundf("MacOSInstance %s has no virtual machine on this Mac; its phase is %s", instance.Name, instance.Status.Phase)
	}
	return slot, nil
}

// Exec runs a command in the guest of a pod's virtual machine.
func (a *Agent) Exec(ctx context.Context, namespace, name, container string, command []string, io api.AttachIO) error {
	return a.session(ctx, namespace, name, func(ctx context.Context, c *guest.Client) error {
		code, err := c.Exec(ctx, guest.Command{
			Args: command, Stdin: io.Stdin(), Stdout: writer(io.Stdout()), Stderr: writer(io.Stderr()),
			TTY: io.TTY(), Resize: sizes(ctx, io),
		})
		if err == nil && code != 0 {
			return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
		}
		return err
	})
}

// writer returns nil for a missing stream; a nil WriteCloser in an io.Writer would not equal nil.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

func sizes(ctx context.Context, io api.AttachIO) <-chan guest.Size {
	if !io.TTY() {
		return nil
	}
	sizes := make(chan guest.Size)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-io.Resize():
				select {
				case <-ctx.Done():
					return
				case sizes <- guest.Size{Columns: s.Width, Rows: s.Height}:
				}
			}
		}
	}()
	return sizes
}

// PortForward connects a stream to a TCP port in the guest of a pod's virtual machine.
func (a *Agent) PortForward(ctx context.Context, namespace, name string, port int32, stream io.ReadWriteCloser) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d is invalid; use a port from 1 to 65535", port)
	}
	return a.session(ctx, namespace, name, func(ctx context.Context, c *guest.Client) error {
		return c.Forward(ctx, uint16(port), stream)
	})
}

// session calls do with a connection to the guest agent of a pod's virtual machine. The connection
// ends with the virtual machine.
func (a *Agent) session(ctx context.Context, namespace, name string, do func(context.Context, *guest.Client) error) error {
	slot, err := a.machineOf(namespace, name)
	if err != nil {
		return err
	}
	if slot.Phase != slots.Attached || slot.State.VM != contract.VMRunning {
		return fmt.Errorf("the virtual machine of pod %s is not running", name)
	}
	uid := slot.UID()
	leave, err := a.sessions.enter(uid)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := connectGuest(ctx, a.config.Clock, func(ctx context.Context) (net.Conn, error) { return a.slots.Connect(ctx, uid, guest.Port) })
	if err != nil {
		return fmt.Errorf("%w: %w", guest.ErrSilent, err)
	}
	defer conn.Close()
	client, err := guest.NewClient(once(conn))
	if err != nil {
		return err
	}
	defer client.Close()
	err = do(ctx, client)
	if errors.Is(err, guest.ErrLost) || errors.Is(err, guest.ErrSilent) {
		if now, ok := a.slots.Find(uid); !ok || now.Phase != slots.Attached || now.State.VM != contract.VMRunning {
			return errVMStopped
		}
	}
	return err
}

// connectGuest connects to a guest agent. The guest agent listens a moment after its virtual
// machine starts, so connectGuest retries for guestPatience.
func connectGuest(ctx context.Context, clock clock.Clock, connect func(context.Context) (net.Conn, error)) (net.Conn, error) {
	deadline := clock.After(guestPatience)
	for {
		conn, err := connect(ctx)
		if err == nil || errors.Is(err, slots.ErrNotHere) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-deadline:
			return nil, err
		case <-clock.After(guestRetry):
		}
	}
}

// once returns a dialer that hands out conn and then fails: a session must not continue on another
// connection.
func once(conn net.Conn) func(context.Context) (net.Conn, error) {
	var mu sync.Mutex
	return func(context.Context) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if conn == nil {
			return nil, errors.New("the connection was lost")
		}
		c := conn
		conn = nil
		return c, nil
	}
}

// sessions counts the commands and forwarded connections of each virtual machine. The limit of
// streams is not enough: one kubectl port-forward request has many connections.
type sessions struct {
	mu  sync.Mutex
	now map[string]int
}

func (s *sessions) enter(uid string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now[uid] >= node.MaxSessions {
		return nil, fmt.Errorf("this virtual machine has %d open commands and forwarded connections, and the limit is %d; close one first", s.now[uid], node.MaxSessions)
	}
	if s.now == nil {
		s.now = map[string]int{}
	}
	s.now[uid]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.now[uid]--; s.now[uid] == 0 {
			delete(s.now, uid)
		}
	}, nil
}
