package sim

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/runner"
)

// defaultSimulation is a guest that boots and shuts down quickly.
var defaultSimulation = contract.Simulation{BootMillis: 200, ShutdownMillis: 50}

// Backend makes simulated VMs on one simulated Mac.
type Backend struct {
	Host  HostDir
	Clock clock.Clock
}

// NewMachineID returns a machine identifier, as base64.
func NewMachineID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return base64.StdEncoding.EncodeToString(id)
}

// NewMachine implements runner.Backend.
func (b *Backend) NewMachine(spec *contract.Spec, dir contract.SlotDir, events runner.Events) (runner.Machine, error) {
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
	console, err := os.OpenFile(dir.ConsolePath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &machine{
		host: b.Host, clock: b.Clock, spec: spec, behaviour: *behaviour, events: events, console: console,
		address:  fmt.Sprintf("192.168.64.%d", 2+slot),
		shutdown: make(chan struct{}, 1), end: make(chan error, 1), ended: make(chan struct{}),
	}, nil
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
	events    runner.Events
	address   string

	shutdown chan struct{} // the guest was asked to shut down
	end      chan error    // ends the guest: nil is an orderly end
	ended    chan struct{}
	err      error // valid once ended is closed
	hang     hangGate

	consoleMu sync.Mutex
	console   io.WriteCloser
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

// run is the guest's life.
func (m *machine) run(stop func()) {
	defer close(m.ended)
	defer stop()
	defer m.console.Close()
	m.printf("%s boots with %d CPUs, machine ID %s, MAC address %s", m.spec.Name, m.spec.CPU, m.spec.MachineID, m.spec.MACAddress)

	var booted, crashed, down <-chan time.Time
	if !m.behaviour.NeverReady {
		booted = m.clock.After(time.Duration(m.behaviour.BootMillis) * time.Millisecond)
	}
	if m.behaviour.CrashAfterMillis > 0 {
		crashed = m.clock.After(time.Duration(m.behaviour.CrashAfterMillis) * time.Millisecond)
	}
	for {
		select {
		case <-booted:
			m.printf("guest agent ready at %s", m.address)
			m.events.GuestReady()
			m.events.Address(contract.Address{Value: m.address, Source: contract.AddressFromGuestAgent, ObservedAt: m.clock.Now()})
			if m.spec.StartupScript != "" {
				m.printf("startup script ended with exit code %d", m.behaviour.ScriptExitCode)
				m.events.StartupScript(contract.ScriptResult{ExitCode: m.behaviour.ScriptExitCode, OutputTail: "simulated: the script was not run\n"})
			}
		case <-m.shutdown:
			if m.behaviour.IgnoreShutdown {
				m.printf("asked to shut down, ignored")
				continue
			}
			m.printf("shutting down")
			down = m.clock.After(time.Duration(m.behaviour.ShutdownMillis) * time.Millisecond)
		case <-down:
			m.printf("down")
			return
		case <-crashed:
			m.err = &contract.Error{Domain: contract.VZErrorDomain, Code: 1, Message: "The virtual machine stopped unexpectedly."}
			return
		case m.err = <-m.end:
			return
		}
	}
}

func (m *machine) printf(format string, args ...any) {
	m.consoleMu.Lock()
	defer m.consoleMu.Unlock()
	_, _ = fmt.Fprintf(m.console, "%s "+format+"\n", append([]any{m.clock.Now().UTC().Format(time.RFC3339)}, args...)...)
}

func (m *machine) Wait() error {
	<-m.ended
	return m.err
}

func (m *machine) RequestShutdown(context.Context) error {
	select {
	case m.shutdown <- struct{}{}:
	default:
	}
	return nil
}

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

// Paths that the simulator adds to a runner's API, to make faults happen.
const (
	PathCrash = "/sim/crash" // POST: the VM fails
	PathDown  = "/sim/down"  // POST: the guest shuts itself down
	PathHang  = "/sim/hang"  // POST: the API stops answering, the VM runs on
	PathWake  = "/sim/wake"  // POST: the API answers again
)

// hangGate holds requests back while it is shut.
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

// WrapHandler adds the simulator's own paths to the runner's API.
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
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		if m.hang.pass(req.Context()) {
			next.ServeHTTP(w, req)
		}
	})
	return mux
}
