package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

const (
	// probeInterval is the interval of state probes of a running guest, and probeTimeout bounds a
	// probe.
	probeInterval = 10 * time.Second
	probeTimeout  = 5 * time.Second
	// lookupInterval is the interval at which the host looks up the guest's address while the guest
	// agent does not report it.
	lookupInterval = 5 * time.Second
	// addressRefresh is the age at which an unchanged address is reported again.
	addressRefresh = 5 * time.Minute
	// retryPause is the time between tries after a failure other than a timeout.
	retryPause = time.Second
	// shutdownTimeout bounds one shutdown request to the guest.
	shutdownTimeout = 10 * time.Second
	// notRun is the exit code of a script that was not run.
	notRun = 255
)

// follow updates the state from the guest's reports until ctx ends.
func (r *runner) follow(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.setUp(ctx) })
	running.Go(func() { r.lookForAddress(ctx) })
	for {
		pause := probeInterval
		info, err := r.info(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			r.answered(info)
		default:
			r.silent(err)
			pause = retryPause
		}
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(pause):
		}
	}
}

func (r *runner) info(ctx context.Context) (*guest.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.agents.info(ctx)
}

func (r *runner) answered(info *guest.Info) {
	if r.State().SessionPort != info.SessionPort {
		r.update(func(s *contract.State) { s.SessionPort = info.SessionPort })
	}
	// Commands that run before an automatic login would miss the login session.
	if !r.State().GuestReady && !info.SessionPending {
		r.console.Printf("the guest agent responds (version %q)", info.Version)
		r.update(func(s *contract.State) { s.GuestReady, s.GuestSeen, s.GuestAgent = true, true, r.agents.kind() })
	}
	if len(info.Addresses) > 0 {
		r.found(contract.Address{Value: info.Addresses[0].String(), Source: contract.AddressFromGuestAgent, ObservedAt: r.clock.Now()})
	}
}

func (r *runner) silent(err error) {
	if r.State().GuestReady {
		r.console.Printf("the guest agent no longer responds")
		r.guestLog.trouble("Guest agent no longer responds", err)
		r.update(func(s *contract.State) { s.GuestReady = false })
	}
}

// lookForAddress looks up the address on the host while the guest does not report it.
func (r *runner) lookForAddress(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(lookupInterval):
		}
		if s := r.State(); s.GuestReady && s.Address != nil && s.Address.Source == contract.AddressFromGuestAgent {
			continue
		}
		if a := r.findAddress(ctx); a != nil {
			r.found(*a)
		}
	}
}

// found reports an address that is new or due for a refresh.
func (r *runner) found(a contract.Address) {
	if a.Source == contract.AddressFromGuestAgent && r.network != nil {
		return // the network knows it better than the guest
	}
	s := r.State()
	if old := s.Address; old != nil && old.Value == a.Value {
		if old.Source == a.Source && a.ObservedAt.Sub(old.ObservedAt) < addressRefresh {
			return
		}
		if old.Source == contract.AddressFromGuestAgent && a.Source != old.Source && a.ObservedAt.Sub(old.ObservedAt) < addressRefresh {
			return // a fresh address from the guest takes precedence
		}
	}
	r.update(func(s *contract.State) {
		if s.VM != contract.VMStopping {
			s.Address = &a
		}
	})
}

// setUp passes the keys and the startup script to the guest, and follows the script to its end. The
// guest ignores repeated requests.
func (r *runner) setUp(ctx context.Context) {
	setup := guest.Setup{
		InstanceUID: r.spec.InstanceUID, SSHAuthorizedKeys: r.spec.SSHAuthorizedKeys, StartupScript: r.spec.StartupScript, Caches: len(r.spec.Shares) > 0,
	}
	if r.spec.Environment {
		select {
		case <-ctx.Done():
			return
		case setup.Environment = <-r.environment:
		}
	}
	tail := &tail{}
	client, err := r.agents.wait(ctx)
	if err != nil {
		return // the VM has ended
	}
	for ctx.Err() == nil {
		if info, err := r.info(ctx); err == nil { // the guest is up
			if len(setup.Environment) > 0 && !info.SetsEnvironment {
				setup.StartupScript, setup.Environment = "", nil // the keys are installed nevertheless
			}
			result, err := client.Setup(ctx, setup, tail.received, func(data []byte) {
				if tail.take(data) {
					_, _ = r.console.Write(data)
				}
			})
			if err == nil {
				if r.spec.StartupScript != setup.StartupScript {
					result = &guest.SetupResult{ExitCode: notRun, Reason: fmt.Sprintf("the startup script was not run: guest agent %q cannot set environment variables; use an image with a newer one", info.Version)}
				}
				r.startupScript(result, tail)
				return
			}
			if ctx.Err() == nil {
				r.guestLog.trouble("Failed to set up guest", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-r.clock.After(retryPause):
		}
	}
}

func (r *runner) startupScript(result *guest.SetupResult, tail *tail) {
	if r.spec.StartupScript == "" {
		return
	}
	if result.Reason != "" {
		tail.take([]byte("\n" + result.Reason + "\n"))
	}
	r.console.Printf("the startup script ended with exit code %d", result.ExitCode)
	script := &contract.ScriptResult{ExitCode: result.ExitCode, OutputTail: tail.text(), EndedAt: r.clock.Now()}
	r.update(func(s *contract.State) { s.StartupScript = script })
}

// tail is the end of a script's output.
type tail struct {
	received int64
	last     []byte
}

// take reports whether the output is within the limit of its length.
func (t *tail) take(data []byte) bool {
	t.received += int64(len(data))
	t.last = append(t.last, data...)
	if n := len(t.last); n > contract.MaxScriptOutput {
		t.last = t.last[n-contract.MaxScriptOutput:]
	}
	return t.received <= guest.MaxScriptOutput
}

// text returns valid UTF-8 that fits into an API object.
func (t *tail) text() string {
	text := strings.ToValidUTF8(string(t.last), "\uFFFD")
	if n := len(text); n > contract.MaxScriptOutput {
		text = strings.ToValidUTF8(text[n-contract.MaxScriptOutput:], "")
	}
	return text
}

// askToShutDown repeats the request until the guest accepts it, or ctx ends with the grace period.
// The guest may still be booting.
func (r *runner) askToShutDown(ctx context.Context) {
	r.console.Printf("requesting shutdown of the guest")
	for {
		try, cancel := context.WithTimeout(ctx, shutdownTimeout)
		err := r.shutDown(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		r.guestLog.trouble("Failed to request shutdown; VM is forced off when its grace period ends", err)
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(retryPause):
		}
	}
}

func (r *runner) shutDown(ctx context.Context) error {
	client, err := r.agents.wait(ctx)
	if err != nil {
		return err
	}
	return client.Shutdown(ctx)
}

// Connect implements contract.Runner.
func (r *runner) Connect(ctx context.Context, port uint32) (net.Conn, error) {
	return r.connector.connect(ctx, port)
}

// errEnded means that the VM has ended.
var errEnded = errors.New("the virtual machine has ended")

// staleConnect is the age at which a pending connection counts as lost. The attempt cannot be
// canceled.
const staleConnect = time.Minute

// connector connects to the guest within a bounded time, although the hypervisor may take longer. A
// late connection serves the next caller. So at most one connection per concurrent caller is
// pending, and one more per minute.
type connector struct {
	machine Machine
	clock   clock.PassiveClock
	ended   context.Context
	end     context.CancelFunc

	mu    sync.Mutex
	ports map[uint32]*waiting
	open  map[*guestConn]struct{}
}

// waiting counts the callers that wait for connections to a port, and the pending connections.
type waiting struct {
	made    chan made
	waiters int
	making  int
	last    time.Time // start of the last attempt
}

type made struct {
	conn net.Conn
	err  error
}

func newConnector(machine Machine, clk clock.PassiveClock) *connector {
	ended, end := context.WithCancel(context.Background())
	return &connector{machine: machine, clock: clk, ended: ended, end: end, ports: map[uint32]*waiting{}, open: map[*guestConn]struct{}{}}
}

func (c *connector) connect(ctx context.Context, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, contract.ConnectTimeout, errors.New("connection timed out"))
	defer cancel()
	c.mu.Lock()
	w := c.ports[port]
	if w == nil {
		w = &waiting{made: make(chan made)}
		c.ports[port] = w
	}
	w.waiters++
	if w.making < w.waiters || c.clock.Since(w.last) >= staleConnect {
		w.making++
		w.last = c.clock.Now()
		go c.make(w, port)
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		w.waiters--
		c.tidy(port, w)
	}()
	select {
	case m := <-w.made:
		if m.err != nil {
			return nil, m.err
		}
		return c.keep(m.conn)
	case <-c.ended.Done():
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// make opens one connection and passes it to a waiting caller, or closes it.
func (c *connector) make(w *waiting, port uint32) {
	conn, err := c.machine.Connect(c.ended, port)
	c.mu.Lock()
	w.making--
	wanted := w.waiters > 0
	c.tidy(port, w)
	c.mu.Unlock()
	if wanted {
		select {
		case w.made <- made{conn, err}:
			return
		case <-c.ended.Done():
		case <-time.After(time.Second): // all callers have given up meanwhile
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// tidy removes a port without waiting callers.
func (c *connector) tidy(port uint32, w *waiting) {
	if w.waiters == 0 && w.making == 0 {
		delete(c.ports, port)
	}
}

func (c *connector) keep(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Err() != nil {
		_ = conn.Close()
		return nil, errEnded
	}
	kept := &guestConn{Conn: conn, connector: c}
	c.open[kept] = struct{}{}
	return kept, nil
}

// Close closes all connections, pending ones once they are open.
func (c *connector) Close() {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close()
	}
	clear(c.open)
}

// guestConn is a connection that ends with the VM.
type guestConn struct {
	net.Conn
	connector *connector
}

func (g *guestConn) Close() error {
	g.connector.mu.Lock()
	delete(g.connector.open, g)
	g.connector.mu.Unlock()
	return g.Conn.Close()
}
