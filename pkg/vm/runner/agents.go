package runner

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/clients"
)

// preferenceTime is how long the answer of an agent waits for that of a preferred one.
const preferenceTime = 2 * time.Second

// agents finds out which agent a guest has, and remembers it for the life of the VM: each agent
// runs a startup script once, so two of them would run it twice.
type agents struct {
	clock   clock.Clock
	clients []guest.Agent // as clients.Kinds

	mu     sync.Mutex
	chosen int           // valid once known is closed
	known  chan struct{} // closed once an agent has answered
}

// newAgents returns agents that connect to ports of the guest.
func newAgents(clk clock.Clock, connect func(ctx context.Context, port uint32) (net.Conn, error)) (*agents, error) {
	a := &agents{clock: clk, known: make(chan struct{})}
	for _, kind := range clients.Kinds {
		client, err := clients.New(kind, func(ctx context.Context) (net.Conn, error) { return connect(ctx, clients.Port(kind)) })
		if err != nil {
			a.Close()
			return nil, err
		}
		a.clients = append(a.clients, client)
	}
	return a, nil
}

// Close closes all clients.
func (a *agents) Close() {
	for _, client := range a.clients {
		client.Close()
	}
}

// kind returns the kind of the guest's agent; empty if it is unknown.
func (a *agents) kind() contract.GuestAgent {
	select {
	case <-a.known:
		return clients.Kinds[a.chosen]
	default:
		return ""
	}
}

// wait returns the client of the guest's agent once info has found it.
func (a *agents) wait(ctx context.Context) (guest.Agent, error) {
	select {
	case <-a.known:
		return a.clients[a.chosen], nil
	case <-ctx.Done():
		return nil, guest.ErrSilent
	}
}

// info asks the guest's agent, or looks for one.
func (a *agents) info(ctx context.Context) (*guest.Info, error) {
	if a.kind() == "" {
		return a.find(ctx)
	}
	return a.clients[a.chosen].Info(ctx)
}

// find asks all agents, and chooses one that answers.
func (a *agents) find(ctx context.Context) (*guest.Info, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		index int
		info  *guest.Info
		err   error
	}
	answers := make(chan answer, len(a.clients))
	for i, client := range a.clients {
		go func() {
			info, err := client.Info(ctx)
			answers <- answer{i, info, err}
		}()
	}
	var best *answer
	var errs []error
	var enough <-chan time.Time
	for range a.clients {
		select {
		case got := <-answers:
			if got.err != nil {
				errs = append(errs, got.err)
			} else if best == nil || got.index < best.index {
				best, enough = &got, a.clock.After(preferenceTime)
			}
		case <-enough:
			a.choose(best.index)
			return best.info, nil
		}
		if best != nil && best.index == 0 {
			break
		}
	}
	if best == nil {
		return nil, errors.Join(errs...)
	}
	a.choose(best.index)
	return best.info, nil
}

func (a *agents) choose(index int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kind() == "" {
		a.chosen = index
		close(a.known)
	}
}
