package runner

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

const (
	// probeInterval is how often a guest that is up is asked for its state, and
	// probeTimeout how long it may take to answer.
	probeInterval = 10 * time.Second
	probeTimeout  = 5 * time.Second
	// lookupInterval is how often the address of a guest is looked for from outside
	// while its agent does not tell it.
	lookupInterval = 5 * time.Second
	// addressRefresh is how old an address gets before it is reported again.
	addressRefresh = 5 * time.Minute
	// retryPause is the time between tries after a failure that is not a timeout.
	retryPause = time.Second
	// shutdownTimeout bounds one try to tell the guest that it is to shut down.
	shutdownTimeout = 10 * time.Second
)

// follow keeps the state current with what the guest says, until ctx ends.
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
	return r.guest.Info(ctx)
}

func (r *runner) answered(info *guest.Info) {
	if !r.State().GuestReady {
		r.console.Printf("the guest agent answers (version %q)", info.Version)
		r.update(func(s *contract.State) { s.GuestReady, s.GuestSeen = true, true })
	}
	if len(info.Addresses) > 0 {
		r.found(contract.Address{Value: info.Addresses[0].String(), Source: contract.AddressFromGuestAgent, ObservedAt: r.clock.Now()})
	}
}

func (r *runner) silent(err error) {
	if r.State().GuestReady {
		r.console.Printf("the guest agent does not answer any more")
		r.guestLog.trouble("The guest agent does not answer any more", err)
		r.update(func(s *contract.State) { s.GuestReady = false })
	}
}

// lookForAddress finds the address from outside while the guest does not tell it.
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
		if a := r.machine.FindAddress(ctx); a != nil {
			r.found(*a)
		}
	}
}

// found reports an address that is new, or was seen long ago.
func (r *runner) found(a contract.Address) {
	s := r.State()
	if old := s.Address; old != nil && old.Value == a.Value {
		if old.Source == a.Source && a.ObservedAt.Sub(old.ObservedAt) < addressRefresh {
			return
		}
		if old.Source == contract.AddressFromGuestAgent && a.Source != old.Source && a.ObservedAt.Sub(old.ObservedAt) < addressRefresh {
			return // the guest's word is the better one while it is fresh
		}
	}
	r.update(func(s *contract.State) {
		if s.VM != contract.VMStopping {
			s.Address = &a
		}
	})
}

// setUp gives the guest its keys and its startup script, and follows the script to
// its end. The guest does it once, however often it is asked.
func (r *runner) setUp(ctx context.Context) {
	setup := guest.Setup{InstanceUID: r.spec.InstanceUID, SSHAuthorizedKeys: r.spec.SSHAuthorizedKeys, StartupScript: r.spec.StartupScript}
	tail := &tail{}
	for ctx.Err() == nil {
		if _, err := r.info(ctx); err == nil { // it is up
			result, err := r.guest.Setup(ctx, setup, tail.received, func(data []byte) {
				if tail.take(data) {
					_, _ = r.console.Write(data)
				}
			})
			if err == nil {
				r.startupScript(result, tail)
				return
			}
			if ctx.Err() == nil {
				r.guestLog.trouble("The guest is not set up yet", err)
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

// take tells whether the output still is of a length that a guest should send.
func (t *tail) take(data []byte) bool {
	t.received += int64(len(data))
	t.last = append(t.last, data...)
	if n := len(t.last); n > contract.MaxScriptOutput {
		t.last = t.last[n-contract.MaxScriptOutput:]
	}
	return t.received <= guest.MaxScriptOutput
}

// text is what an API object can hold.
func (t *tail) text() string {
	text := strings.ToValidUTF8(string(t.last), "\uFFFD")
	if n := len(text); n > contract.MaxScriptOutput {
		text = strings.ToValidUTF8(text[n-contract.MaxScriptOutput:], "")
	}
	return text
}

// askToShutDown asks the guest until it has heard, or ctx ends with its grace: it may
// be booting.
func (r *runner) askToShutDown(ctx context.Context) {
	r.console.Printf("the guest is asked to shut down")
	for {
		try, cancel := context.WithTimeout(ctx, shutdownTimeout)
		err := r.guest.Shutdown(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		r.guestLog.trouble("The guest cannot be asked to shut down; the plug is pulled when its grace ends", err)
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(retryPause):
		}
	}
}

// Connect implements contract.Runner.
func (r *runner) Connect(ctx context.Context, port uint32) (net.Conn, error) {
	return r.connector.connect(ctx, port)
}

// errEnded means that the VM has ended.
var errEnded = errors.New("the virtual machine has ended")

// staleConnect is when a connection that is being made counts as lost. The attempt
// cannot be ended.
const staleConnect = time.Minute

// connector connects to the guest within a bounded time, though the hypervisor may
// take any: what comes too late serves who asks next, so that no more connections
// are being made than were waited for at the same time, and one more a minute.
type connector struct {
	machine Machine
	clock   clock.PassiveClock
	ended   context.Context
	end     context.CancelFunc

	mu    sync.Mutex
	ports map[uint32]*waiting
	open  map[*guestConn]struct{}
}

// waiting is who waits for connections to a port, and how many are being made.
type waiting struct {
	made    chan made
	waiters int
	making  int
	last    time.Time // when the last one was begun
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
	ctx, cancel := context.WithTimeoutCause(ctx, contract.ConnectTimeout, errors.New("nobody has answered in time"))
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

// make makes one connection and hands it to whoever waits, or drops it.
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
		case <-time.After(time.Second): // all that waited have gone meanwhile
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// tidy forgets a port that nobody waits for.
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

// Close ends all connections, and those that are being made when they are made.
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
