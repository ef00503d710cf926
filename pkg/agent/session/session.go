// Package session opens sessions with the guests of virtual machines: commands, forwarded ports and
// consoles.
package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/clients"
)

const (
	// guestPatience is the time for which a session waits until the guest agent listens.
	guestPatience = 10 * time.Second
	// guestRetry is the time between two attempts to connect.
	guestRetry = 200 * time.Millisecond
)

// ErrVMStopped means that a session ended with its virtual machine.
var ErrVMStopped = errors.New("the virtual machine has stopped, or is stopping")

// Pods finds the placeholder pods of this Mac and their instances.
type Pods interface {
	Lister() corelisters.PodLister
	OwnerOf(pod *corev1.Pod) (*instancev1alpha1.MacOSInstance, error)
}

// Sessions opens sessions with the guests.
type Sessions struct {
	pods  Pods
	slots *slots.Manager
	clock clock.Clock
	counter
}

// New returns Sessions.
func New(pods Pods, slots *slots.Manager, c clock.Clock) *Sessions {
	return &Sessions{pods: pods, slots: slots, clock: c}
}

// machineOf returns the slot of a placeholder pod's virtual machine. A tenant can set the UID of
// another tenant's instance on a pod. Therefore the instance must be in the pod's namespace and
// name the pod, and the slot must hold that instance.
func (s *Sessions) machineOf(namespace, name string) (slots.Status, error) {
	pod, err := s.pods.Lister().Pods(namespace).Get(name)
	if err != nil {
		return slots.Status{}, errdefs.AsNotFound(err)
	}
	instance, err := s.pods.OwnerOf(pod)
	switch {
	case err != nil:
		return slots.Status{}, err
	case instance == nil:
		return slots.Status{}, errdefs.NotFoundf("pod %s is not the placeholder of a MacOSInstance on this Mac", name)
	}
	slot, ok := s.slots.Find(string(instance.UID))
	if !ok || slot.Spec.Namespace != namespace || slot.Spec.Name != instance.Name {
		return slots.Status{}, errdefs.NotFoundf("MacOSInstance %s has no virtual machine on this Mac; its phase is %s", instance.Name, instance.Status.Phase)
	}
	return slot, nil
}

// open calls do with a connection to the guest agent of a pod's virtual machine. The connection
// ends with the virtual machine.
func (s *Sessions) open(ctx context.Context, namespace, name string, do func(context.Context, guest.Agent) error) error {
	slot, err := s.machineOf(namespace, name)
	if err != nil {
		return err
	}
	if slot.Phase != slots.Attached || slot.State.VM != contract.VMRunning {
		return fmt.Errorf("the virtual machine of pod %s is not running", name)
	}
	uid := slot.UID()
	release, err := s.acquire(uid)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, kind, err := s.connect(ctx, uid)
	if err != nil {
		return fmt.Errorf("%w: %w", guest.ErrSilent, err)
	}
	defer conn.Close()
	client, err := clients.New(kind, once(conn))
	if err != nil {
		return err
	}
	defer client.Close()
	err = do(ctx, client)
	if errors.Is(err, guest.ErrLost) || errors.Is(err, guest.ErrSilent) {
		if now, ok := s.slots.Find(uid); !ok || now.Phase != slots.Attached || now.State.VM != contract.VMRunning {
			return ErrVMStopped
		}
	}
	return err
}

// connect connects to the agent in the login session of the guest, or else to the guest's system
// agent, and returns its kind. The session may have ended since the runner last asked for its port.
func (s *Sessions) connect(ctx context.Context, uid string) (conn net.Conn, kind contract.GuestAgent, err error) {
	if port := s.state(uid).SessionPort; port != 0 {
		if conn, err := s.slots.Connect(ctx, uid, port); err == nil {
			return conn, contract.GuestAgentMacRack, nil
		}
	}
	conn, err = connectGuest(ctx, s.clock, func(ctx context.Context) (net.Conn, error) {
		kind = s.state(uid).GuestAgent
		return s.slots.Connect(ctx, uid, clients.Port(kind))
	})
	return conn, kind, err
}

// state returns the state of a guest; the zero value while it is unknown.
func (s *Sessions) state(uid string) contract.State {
	slot, ok := s.slots.Find(uid)
	if !ok || slot.State == nil {
		return contract.State{}
	}
	return *slot.State
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
