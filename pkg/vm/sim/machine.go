package sim

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/tart"
	"macrack.io/macrack/pkg/vm/network"
	"macrack.io/macrack/pkg/vm/runner"
)

// defaultSimulation is a guest that boots and shuts down quickly.
var defaultSimulation = contract.Simulation{BootMillis: 200, ShutdownMillis: 50}

// Backend creates simulated VMs on one simulated Mac.
type Backend struct {
	Host  HostDir
	Clock clock.Clock
	// GuestAgent is the command line of macrack-guest-agent, which guests run as a process of the
	// host. It is for development only: commands of tenants run on the host, confined to a
	// directory as far as Landlock can. Without it, the guest agent runs in this process and runs
	// no commands.
	GuestAgent []string
	// Network attaches the guests to their isolated networks. Otherwise, they have no network.
	Network bool
}

// NewMachineID returns a machine identifier, as base64.
func NewMachineID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return base64.StdEncoding.EncodeToString(id)
}

// NewMachine implements runner.Backend.
func (b *Backend) NewMachine(spec *contract.Spec, dir contract.SlotDir, console *runner.Console, device runner.Device) (runner.Machine, error) {
	behaviour, err := b.behaviour(spec)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir.DiskPath()); err != nil {
		return nil, fmt.Errorf("the VM has no disk: %w", err)
	}
	slot, err := strconv.Atoi(filepath.Base(string(dir)))
	if err != nil {
		return nil, fmt.Errorf("slot directory %q is not named by its number: %w", dir, err)
	}
	m := &machine{
		host: b.Host, clock: b.Clock, agentPort: guest.Port, spec: spec, behaviour: *behaviour, console: console,
		shutdown: make(chan struct{}, 1), end: make(chan error, 1), reboot: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	address := fmt.Sprintf("192.168.64.%d", 2+slot)
	if b.Network && spec.Network.Isolated() {
		if m.network, err = newGuestNetwork(spec, device); err != nil {
			return nil, err
		}
		address = network.Guest.String()
	}
	if len(b.GuestAgent) > 0 {
		if m.guest, err = newProcess(b.GuestAgent, spec, dir, address, behaviour, m.askToShutDown); err != nil {
			return nil, err
		}
		m.session, err = newSession(b.GuestAgent, spec, dir)
	} else {
		m.guest, err = newModel(dir, address, behaviour, m.askToShutDown)
	}
	if err == nil && behaviour.TartAgent {
		m.session = nil // tart's agent has no second port
		m.guest, m.agentPort = &tartAgent{guestAgent: m.guest, shutdown: m.askToShutDown}, tart.Port
	}
	return m, err
}

func (b *Backend) behaviour(spec *contract.Spec) (*contract.Simulation, error) {
	if spec.Simulation != nil {
		return spec.Simulation, nil
	}
	data, err := os.ReadFile(b.Host.path("guest.json"))
	if errors.Is(err, os.ErrNotExist) {
		return &defaultSimulation, nil
	}
	if err != nil {
		return nil, err
	}
	var s contract.Simulation
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("guest.json: %w", err)
	}
	return &s, nil
}

type machine struct {
	host      HostDir
	clock     clock.Clock
	spec      *contract.Spec
	behaviour contract.Simulation
	console   *runner.Console
	guest     guestAgent
	agentPort uint32
	session   *process      // the agent in the guest's login session; nil if the guest runs no commands
	network   *guestNetwork // nil if the guest has none

	shutdown chan struct{} // the guest is shutting down
	reboot   chan struct{}
	end      chan error // ends the guest; nil is an orderly end
	ended    chan struct{}
	err      error // valid once ended is closed
	hang     hangGate
}

// guestAgent is the agent in a simulated guest.
type guestAgent interface {
	// boot starts the agent, and restarts it if it dies.
	boot() error
	// halt ends the agent and its commands.
	halt()
	connect(ctx context.Context) (net.Conn, error)
	// freeze freezes the agent, or thaws it.
	freeze(bool)
	// kill crashes the agent; the guest restarts it.
	kill()
}

func (m *machine) Start(context.Context) error {
	if m.behaviour.StartError != nil {
		return m.behaviour.StartError
	}
	stop, err := m.host.StartVM()
	if err != nil {
		return err
	}
	go m.run(stop)
	return nil
}

// run runs the guest from boot to end.
func (m *machine) run(stop func()) {
	defer close(m.ended)
	defer stop()
	defer m.guest.halt()
	defer m.logOut()
	defer m.network.halt()
	m.console.Printf("%s boots with %d CPUs, machine ID %s, MAC address %s", m.spec.Name, m.spec.CPU, m.spec.MachineID, m.spec.MACAddress)

	boot := func() <-chan time.Time {
		if m.behaviour.NeverReady {
			return nil
		}
		return m.clock.After(time.Duration(m.behaviour.BootMillis) * time.Millisecond)
	}
	booted := boot()
	var login, crashed, down <-chan time.Time
	if m.behaviour.CrashAfterMillis > 0 {
		crashed = m.clock.After(time.Duration(m.behaviour.CrashAfterMillis) * time.Millisecond)
	}
	for {
		select {
		case <-booted:
			m.network.boot()
			if m.behaviour.NoGuestAgent {
				continue
			}
			if err := m.guest.boot(); err != nil {
				m.console.Printf("the guest agent failed to start: %v", err)
			}
			if m.session != nil && m.behaviour.LoginMillis > 0 {
				login = m.clock.After(time.Duration(m.behaviour.LoginMillis) * time.Millisecond)
			}
		case <-login:
			if err := m.session.boot(); err != nil {
				m.console.Printf("the guest agent of the login session failed to start: %v", err)
			}
		case <-m.reboot:
			m.console.Printf("reboots")
			m.logOut()
			m.guest.halt()
			booted, login = boot(), nil
		case <-m.shutdown:
			if m.behaviour.IgnoreShutdown {
				m.console.Printf("shutdown request ignored")
				continue
			}
			m.console.Printf("shutting down")
			down = m.clock.After(time.Duration(m.behaviour.ShutdownMillis) * time.Millisecond)
		case <-down:
			m.console.Printf("down")
			return
		case <-crashed:
			m.err = &contract.Error{Domain: contract.VZErrorDomain, Code: 1, Message: "The virtual machine stopped unexpectedly."}
			return
		case m.err = <-m.end:
			return
		}
	}
}

func (m *machine) logOut() {
	if m.session != nil {
		m.session.halt()
	}
}

func (m *machine) Wait() error {
	<-m.ended
	return m.err
}

// askToShutDown is the guest's own shutdown command.
func (m *machine) askToShutDown() {
	select {
	case m.shutdown <- struct{}{}:
	default:
	}
}

// Connect implements runner.Machine.
func (m *machine) Connect(ctx context.Context, port uint32) (net.Conn, error) {
	switch {
	case port == m.agentPort && !m.behaviour.NoGuestAgent:
		return m.guest.connect(ctx)
	case port == guest.SessionPort && m.session != nil:
		return m.session.connect(ctx)
	}
	return nil, errors.New("connection refused")
}

// FindAddress implements runner.Machine: a simulated guest has no network of macOS.
func (m *machine) FindAddress(context.Context) *contract.Address { return nil }

func (m *machine) Kill() error {
	m.finish(nil)
	return nil
}

func (m *machine) finish(err error) {
	select {
	case m.end <- err:
	default:
	}
}

// Paths of the simulator in a runner's API, for fault injection.
const (
	PathCrash = "/sim/crash" // POST: the VM fails
	PathDown  = "/sim/down"  // POST: the guest shuts down by itself
	// PathLogOut ends the login session of the guest.
	PathLogOut = "/sim/logout"
	PathHang   = "/sim/hang" // POST: the API stops responding, and the VM continues to run
	PathWake   = "/sim/wake" // POST: the API responds again

	PathReboot      = "/sim/reboot"       // POST: the guest restarts
	PathGuestFreeze = "/sim/guest/freeze" // POST: the guest hangs
	PathGuestThaw   = "/sim/guest/thaw"   // POST: the guest resumes
	PathGuestKill   = "/sim/guest/kill"   // POST: the guest agent crashes
)

// hangGate blocks requests while it is shut.
type hangGate struct {
	mu   sync.Mutex
	shut chan struct{} // nil when open
}

func (g *hangGate) set(hang bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if hang && g.shut == nil {
		g.shut = make(chan struct{})
	} else if !hang && g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func (g *hangGate) pass(ctx context.Context) bool {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut == nil {
		return true
	}
	select {
	case <-shut:
		return true
	case <-ctx.Done():
		return false
	}
}

// WrapHandler adds the simulator's paths to the runner's API.
func (m *machine) WrapHandler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	act := func(path string, do func()) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
			do()
			w.WriteHeader(http.StatusAccepted)
		})
	}
	act(PathCrash, func() {
		m.finish(&contract.Error{Domain: contract.VZErrorDomain, Code: 1, Message: "The virtual machine stopped unexpectedly."})
	})
	act(PathDown, func() { m.finish(nil) })
	act(PathHang, func() { m.hang.set(true) })
	act(PathWake, func() { m.hang.set(false) })
	act(PathReboot, func() {
		select {
		case m.reboot <- struct{}{}:
		default:
		}
	})
	act(PathLogOut, m.logOut)
	act(PathGuestFreeze, func() { m.guest.freeze(true) })
	act(PathGuestThaw, func() { m.guest.freeze(false) })
	act(PathGuestKill, func() { m.guest.kill() })
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		if m.hang.pass(req.Context()) {
			next.ServeHTTP(w, req)
		}
	})
	return mux
}
