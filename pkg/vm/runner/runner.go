// Package runner runs one VM in one slot: it takes the slot's lock, runs the VM, and writes the
// result. One process runs it once; it does not depend on a backend.
package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
	"macrack.io/macrack/pkg/vm/network"
)

const (
	// DefaultGrace is the grace period of the guest when the runner itself is stopped.
	DefaultGrace = 30 * time.Second
	// killTimeout bounds the wait for a hypervisor that does not report the end of the VM. The VM
	// ends with this process in any case.
	killTimeout = 30 * time.Second
	// lockTimeout is how long a runner tries to take its slot: the agent holds the lock only for
	// moments.
	lockTimeout = 2 * time.Second
	// drainTimeout lets watchers read the last state before the socket closes.
	drainTimeout = time.Second
)

// ErrNothingToRun means that the slot holds no spec, or one that has already run. A spec runs once:
// the agent reports and erases a VM that ended.
var ErrNothingToRun = errors.New("slot holds no spec that has not run yet")

// Backend creates VMs.
type Backend interface {
	// NewMachine creates the VM of spec, whose files are in dir, without starting it. Output for
	// the tenant goes to console, which is closed after the VM has ended. If spec has an isolated
	// network, the VM gets device.
	NewMachine(spec *contract.Spec, dir contract.SlotDir, console *Console, device Device) (Machine, error)
}

// Machine is one VM. Errors of the hypervisor are *contract.Error.
type Machine interface {
	// Start returns once the hypervisor runs the VM.
	Start(ctx context.Context) error
	// Wait blocks until a started VM has ended. It returns nil if the guest shut down or the VM was
	// forced off, and an error if the VM failed.
	Wait() error
	// Kill forces the VM off.
	Kill() error
	// Connect connects to a vsock port of the guest. It may ignore ctx.
	Connect(ctx context.Context, port uint32) (net.Conn, error)
	// FindAddress looks up the guest's address on the host; nil if it is unknown.
	FindAddress(ctx context.Context) *contract.Address
}

// handlerWrapper is a Machine that extends the API, as the simulator does.
type handlerWrapper interface {
	WrapHandler(http.Handler) http.Handler
}

type runner struct {
	clock     clock.Clock
	spec      *contract.Spec
	machine   Machine
	console   *Console
	connector *connector
	agents    *agents
	network   *network.Network // nil if the VM has no isolated network
	guestLog  *guestLog
	// environment receives the environment of the startup script once. It is only in memory.
	environment chan []contract.EnvironmentVariable

	mu       sync.Mutex
	state    contract.State
	changed  chan struct{} // closed and replaced on each change
	stopBy   *time.Time    // when the VM is forced off
	killed   bool
	forced   bool
	stopping chan struct{} // one token per change of stopBy or killed
}

// Run takes the slot, runs its VM to its end, and writes result.json. It returns contract.ErrLocked
// if the slot is taken and ErrNothingToRun if there is no VM to run. When ctx ends, the VM is
// stopped with DefaultGrace.
func Run(ctx context.Context, dir contract.SlotDir, backend Backend, clk clock.Clock) (*contract.Result, error) {
	lock, err := takeLock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()

	faults.At("runner: locked")
	spec, err := unstarted(dir)
	if err != nil {
		return nil, err
	}
	listener, err := dir.Listen()
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir.SocketPath())

	console, err := OpenConsole(dir.ConsolePath(), clk)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	r := &runner{
		clock:    clk,
		spec:     spec,
		console:  console,
		guestLog: newGuestLog(clk, spec.InstanceUID),
		changed:  make(chan struct{}),
		stopping: make(chan struct{}, 1),

		environment: make(chan []contract.EnvironmentVariable, 1),
		state: contract.State{
			InstanceUID: spec.InstanceUID, Namespace: spec.Namespace, Name: spec.Name,
			MachineID: spec.MachineID, MACAddress: spec.MACAddress,
			VM: contract.VMStarting, PID: os.Getpid(), EnvironmentMissing: spec.Environment,
		},
	}
	defer r.closeNetwork()
	r.machine, err = backend.NewMachine(spec, dir, console, r.openNetwork)
	if err != nil {
		_ = listener.Close()
		return r.finish(dir, contract.ExitStartFailed, err)
	}
	r.connector = newConnector(r.machine, clk)
	defer r.connector.Close()
	if r.agents, err = newAgents(clk, r.Connect); err != nil {
		_ = listener.Close()
		return r.finish(dir, contract.ExitStartFailed, err)
	}
	defer r.agents.Close()
	// The spec counts as started before the VM can run, so that it does not run twice after a
	// crash.
	if err := contract.WriteJSON(dir.StartedPath(), contract.Started{InstanceUID: spec.InstanceUID, PID: os.Getpid(), At: clk.Now()}); err != nil {
		_ = listener.Close()
		return nil, err
	}

	var handler http.Handler = contract.NewHandler(r)
	if w, ok := r.machine.(handlerWrapper); ok {
		handler = w.WrapHandler(handler)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer func() {
		drain, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if server.Shutdown(drain) != nil {
			_ = server.Close()
		}
	}()

	if err := r.machine.Start(ctx); err != nil {
		klog.ErrorS(err, "Failed to start VM", "instance", klog.KRef(spec.Namespace, spec.Name))
		return r.finish(dir, contract.ExitStartFailed, err)
	}
	faults.At("runner: started")
	now := clk.Now()
	r.update(func(s *contract.State) {
		s.StartedAt = &now
		if s.VM == contract.VMStarting {
			s.VM = contract.VMRunning
		}
	})
	following, stopFollowing := context.WithCancel(context.Background())
	var followed sync.WaitGroup
	followed.Go(func() { r.follow(following) })
	defer followed.Wait()
	defer stopFollowing()
	klog.InfoS("VM started", "instance", klog.KRef(spec.Namespace, spec.Name), "uid", spec.InstanceUID)
	reason, err := r.supervise(ctx)
	faults.At("runner: ended")
	return r.finish(dir, reason, err)
}

func takeLock(ctx context.Context, dir contract.SlotDir) (*contract.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		lock, err := dir.TryLock()
		if !errors.Is(err, contract.ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func unstarted(dir contract.SlotDir) (*contract.Spec, error) {
	spec, err := dir.ReadSpec()
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, ErrNothingToRun
	}
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir.SpecPath(), err)
	}
	for _, path := range []string{dir.StartedPath(), dir.ResultPath()} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return nil, ErrNothingToRun
		}
	}
	return spec, nil
}

// supervise returns the reason when the VM has ended.
func (r *runner) supervise(ctx context.Context) (contract.ExitReason, error) {
	ended := make(chan error, 1)
	go func() { ended <- r.machine.Wait() }()
	asking, stopAsking := context.WithCancel(context.Background())
	defer stopAsking()

	asked, pulled := false, false
	pull := make(chan error, 1)
	var plug, giveUp <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case err := <-ended:
			return r.exitReason(err)
		case err := <-pull:
			if err != nil {
				klog.ErrorS(err, "Failed to force the VM off; it ends with its runner")
				return r.exitReason(nil)
			}
			continue // the end of the VM follows
		case <-giveUp:
			klog.InfoS("The hypervisor does not end the VM; it ends with its runner", "waited", killTimeout)
			return r.exitReason(nil)
		case <-done:
			done = nil
			r.Stop(DefaultGrace)
			continue
		case <-r.stopping:
		case <-plug:
		}
		stopBy, killed := r.stopOrder()
		if stopBy == nil {
			continue
		}
		wait := stopBy.Sub(r.clock.Now())
		if !killed && !asked && wait > 0 {
			asked = true
			go r.askToShutDown(asking)
		}
		if !killed && wait > 0 {
			plug = r.clock.After(wait)
			continue
		}
		if !pulled {
			pulled = true
			r.mu.Lock()
			r.forced = true
			r.mu.Unlock()
			plug = nil
			giveUp = r.clock.After(killTimeout)
			go func() { pull <- r.machine.Kill() }() // the hypervisor may block
		}
	}
}

func (r *runner) stopOrder() (*time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopBy, r.killed
}

func (r *runner) exitReason(err error) (contract.ExitReason, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.killed:
		return contract.ExitKilled, nil
	case r.forced:
		return contract.ExitStoppedByForce, nil
	case err != nil:
		return contract.ExitCrashed, err
	case r.stopBy != nil:
		return contract.ExitStopped, nil
	default:
		return contract.ExitGuestShutdown, nil
	}
}

// finish writes the result and sends the last state. The lock is still held.
func (r *runner) finish(dir contract.SlotDir, reason contract.ExitReason, cause error) (*contract.Result, error) {
	r.mu.Lock()
	result := &contract.Result{InstanceUID: r.state.InstanceUID, Reason: reason, StartedAt: r.state.StartedAt, EndedAt: r.clock.Now()}
	r.mu.Unlock()
	if cause != nil && !errors.As(cause, &result.Error) {
		result.Error = &contract.Error{Domain: "macrack.io/vm", Message: cause.Error()}
	}
	err := contract.WriteJSON(dir.ResultPath(), result)
	r.update(func(s *contract.State) {
		s.VM, s.Address, s.GuestReady = contract.VMStopped, nil, false
	})
	if r.connector != nil {
		r.connector.Close()
	}
	r.closeNetwork()
	klog.InfoS("VM ended", "uid", result.InstanceUID, "reason", reason, "error", cause)
	return result, err
}

func (r *runner) update(change func(*contract.State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.VM == contract.VMStopped {
		return
	}
	change(&r.state)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *runner) snapshot() (contract.State, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.changed
}

func (r *runner) State() contract.State {
	s, _ := r.snapshot()
	return s
}

func (r *runner) Watch(ctx context.Context, send func(contract.State) error) error {
	for {
		state, changed := r.snapshot()
		if err := send(state); err != nil || state.VM == contract.VMStopped {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (r *runner) Stop(grace time.Duration) {
	by := r.clock.Now().Add(min(max(grace, 0), contract.MaxGrace))
	r.order(func() {
		if r.stopBy == nil || by.Before(*r.stopBy) {
			r.stopBy = &by
		}
	})
}

func (r *runner) Kill() {
	now := r.clock.Now()
	r.order(func() { r.stopBy, r.killed = &now, true })
}

// SetEnvironment implements contract.Runner.
func (r *runner) SetEnvironment(environment []contract.EnvironmentVariable) {
	r.update(func(s *contract.State) {
		if s.EnvironmentMissing {
			s.EnvironmentMissing = false
			r.environment <- environment
		}
	})
}

func (r *runner) order(give func()) {
	r.update(func(s *contract.State) {
		give()
		s.VM = contract.VMStopping
	})
	select {
	case r.stopping <- struct{}{}:
	default:
	}
}
