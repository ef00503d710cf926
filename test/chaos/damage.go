package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/process"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// startRunner starts a runner by hand.
func (m *mac) startRunner(dir contract.SlotDir) error {
	runner := process.Child{
		Name: "a runner", Program: filepath.Join(m.binaries, "macrack-vm"), Args: []string{"run", "--slot-dir", string(dir), "--backend=sim", "--sim-host-dir=" + string(m.host)},
		Env: []string{m.faultsEnv()}, LogFile: os.DevNull, Attributes: &syscall.SysProcAttr{Setsid: true},
	}
	return runner.Start()
}

// tears are kinds of damage to a file.
var tears = []struct {
	name string
	tear func(path string, data []byte) error
}{
	{"half", func(path string, data []byte) error { return os.WriteFile(path, data[:len(data)/2], 0o600) }},
	{"empty", func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) }},
	{"zeros", func(path string, data []byte) error { return os.WriteFile(path, make([]byte, len(data)), 0o600) }},
	{"another's", func(path string, _ []byte) error { return os.WriteFile(path, []byte(`{"instanceUID":"x"}`), 0o600) }},
	{"one byte", func(path string, _ []byte) error { return os.WriteFile(path, []byte("{"), 0o600) }},
	{"null", func(path string, _ []byte) error { return os.WriteFile(path, []byte("null"), 0o600) }},
	{"a directory", func(path string, _ []byte) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }},
	{"a symlink to nothing", func(path string, _ []byte) error { return os.Symlink("/nonexistent/file", path) }},
	{"4 KiB of noise", func(path string, _ []byte) error {
		noise := make([]byte, 4096)
		for i := range noise {
			noise[i] = byte(i*7 + i>>3)
		}
		return os.WriteFile(path, noise, 0o600)
	}},
	{"gone", func(string, []byte) error { return nil }},
}

// tornFiles damages files while the agent is stopped, with one running and one ended virtual
// machine.
func tornFiles(ctx context.Context, r *run) error {
	files := []struct {
		name string
		path func(running, ended contract.SlotDir) string
		// mayEnd means that the running virtual machine may be lost with the file.
		mayEnd bool
	}{
		{"spec.json of a running VM", func(running, _ contract.SlotDir) string { return running.SpecPath() }, false},
		{"started.json of a running VM", func(running, _ contract.SlotDir) string { return running.StartedPath() }, false},
		{"spec.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.SpecPath() }, false},
		{"result.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.ResultPath() }, false},
		{"started.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.StartedPath() }, false},
		{"lock of an ended VM", func(_, ended contract.SlotDir) string { return ended.LockPath() }, false},
		{"vm.sock of an ended VM", func(_, ended contract.SlotDir) string { return ended.SocketPath() }, false},
		{"state.json", func(running, _ contract.SlotDir) string {
			return filepath.Join(filepath.Dir(filepath.Dir(string(running))), "state.json")
		}, false},
	}
	for n, file := range files {
		for m, tear := range tears {
			if r.Torn != 0 && (m != n || n%3 != 0) {
				continue
			}
			r.fault(file.name+" is "+tear.name, func() error {
				before, err := r.two(ctx)
				if err != nil {
					return err
				}
				vms := r.mac.vms(ctx)
				running, ended := vms[0], vms[1]
				r.mac.agent.Kill()
				if _, err := contract.NewClient(r.mac.slot(ended.slot)).Kill(ctx); err != nil {
					return err
				}
				if err := wait(ctx, func() error {
					lock, err := r.mac.slot(ended.slot).TryLock()
					if err == nil {
						lock.Unlock()
					}
					return err
				}); err != nil {
					return err
				}
				path := file.path(r.mac.slot(running.slot), r.mac.slot(ended.slot))
				data, _ := os.ReadFile(path)
				if err := errors.Join(os.RemoveAll(path), tear.tear(path, data), r.mac.agent.Start()); err != nil {
					return err
				}
				i, err := r.ends(ctx, ended.Name)
				if err != nil {
					return err
				}
				if i.Status.Phase != instancev1alpha1.MacOSInstanceFailed {
					return fmt.Errorf("%s is %s: %s", i.Name, i.Status.Phase, i.Status.Message)
				}
				delete(before, ended.Name)
				return errors.Join(r.settle(ctx), r.same(ctx, before))
			})
			if err := r.clear(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Hijack is the process of a foreign user. It listens at a socket in place of a runner, and claims
// to run the requested instance.
func Hijack(ctx context.Context, socket, uid string) error {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		return err
	}
	fmt.Println("listening")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(contract.State{InstanceUID: uid, VM: contract.VMRunning, PID: os.Getpid(), GuestReady: true})
	}), ReadHeaderTimeout: time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

const nobody = 65534

// hijacker runs Hijack as a user without rights.
func (m *mac) hijacker(dir contract.SlotDir, uid string) (stop func(), err error) {
	// The permissions of the folders have been opened by mistake.
	for path := string(dir); path != "/" && len(path) > len("/tmp"); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(m.binaries, 0o755); err != nil {
		return nil, err
	}
	foreign := &process.Child{
		Name: "the hijacker", Program: filepath.Join(m.binaries, "chaos"), Args: []string{"hijack", dir.SocketPath(), uid}, Prints: "listening",
		Attributes: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
	}
	return foreign.Kill, foreign.Start()
}

// hijack listens as a foreign user at the sockets of a free slot and of a running VM. Only root can
// switch to another user.
func hijack(ctx context.Context, r *run) error {
	if os.Geteuid() != 0 {
		fmt.Fprintln(r.Out, "hijack: skipped; it needs root to switch to another user")
		return nil
	}
	r.fault("a foreign process at the socket of a free slot", func() error {
		r.mac.agent.Kill()
		stop, err := r.mac.hijacker(r.mac.slot(0), "made-up")
		if err != nil {
			return err
		}
		defer stop()
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		if _, err := r.two(ctx); err != nil {
			return err
		}
		info, err := os.Stat(string(r.mac.slot(0)))
		if err == nil && info.Mode().Perm() != 0o700 {
			err = fmt.Errorf("the slot has mode %04o", info.Mode().Perm())
		}
		return err
	})
	if err := r.clear(ctx); err != nil {
		return err
	}
	i, err := r.start(ctx)
	if err != nil {
		return err
	}
	r.fault("a foreign process at the socket of a running VM", func() error {
		slot := r.mac.vms(ctx)[0].slot
		pids := r.mac.runners()
		r.mac.agent.Kill()
		stop, err := r.mac.hijacker(r.mac.slot(slot), string(i.UID))
		if err != nil {
			return err
		}
		defer stop()
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		// The VM continues to run but cannot be reached: this must be reported, and nothing else
		// may happen.
		if err := r.quarantined(ctx, rackv1alpha1.ReasonCannotReattach); err != nil {
			return err
		}
		still, err := r.get(ctx, i.Name)
		if err != nil {
			return err
		}
		if still.Status.Phase != instancev1alpha1.MacOSInstanceRunning || len(r.mac.runners()) != 1 || r.mac.runners()[0] != pids[0] {
			return fmt.Errorf("%s is %s: %s; processes %v, now %v", i.Name, still.Status.Phase, still.Status.Message, pids, r.mac.runners())
		}
		stop()
		r.mac.killRunners(pids...)
		if _, err := r.ends(ctx, i.Name); err != nil {
			return err
		}
		return errors.Join(r.unquarantine(ctx), r.settle(ctx))
	})
	return r.clear(ctx)
}

// cycles starts and stops virtual machines many times, and looks for leaks: first in the slots
// alone, then through the whole control plane.
func cycles(ctx context.Context, r *run) error {
	r.fault(fmt.Sprintf("%d cycles of slots", r.Cycles), func() error { return r.slotCycles(ctx) })
	r.fault(fmt.Sprintf("%d cycles of instances", r.APICycles), func() error { return r.instanceCycles(ctx) })
	return nil
}

// slotCycles runs a Mac's slots in this process, with runners of their own.
func (r *run) slotCycles(ctx context.Context) error {
	dir, err := os.MkdirTemp("/tmp", "slots-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	host := sim.HostDir(filepath.Join(dir, "host"))
	if err := errors.Join(host.Init("SIM", "boot"), host.SetGuest(contract.Simulation{})); err != nil {
		return err
	}
	changed := [rules.MaxVMsPerMac]chan struct{}{}
	for i := range changed {
		changed[i] = make(chan struct{}, 1)
	}
	m, err := slots.Open(slots.Config{
		Dir: filepath.Join(dir, "slots"), Clock: clock.RealClock{}, AnswerTimeout: time.Minute,
		Launcher: &slots.Process{Binary: filepath.Join(r.Binaries, "macrack-vm"), Args: []string{"--backend=sim", "--sim-host-dir=" + string(host)}},
		OnChange: func() {
			for _, c := range changed {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		},
	})
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(running)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	half := func(n int) error {
		errs := make(chan error, rules.MaxVMsPerMac)
		for worker := range rules.MaxVMsPerMac {
			go func() {
				var err error
				for cycle := worker; cycle < n && err == nil; cycle += rules.MaxVMsPerMac {
					err = slotCycle(ctx, m, fmt.Sprintf("%d-%d", n, cycle), changed[worker])
				}
				errs <- err
			}()
		}
		var all error
		for range rules.MaxVMsPerMac {
			all = errors.Join(all, <-errs)
		}
		return all
	}
	if err := half(r.Cycles / 10); err != nil {
		return err
	}
	before := ownUsage()
	if err := half(r.Cycles - r.Cycles/10); err != nil {
		return err
	}
	if err := grown(before, ownUsage()); err != nil {
		return err
	}
	left, err := m.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left: %v", left)
	}
	for _, s := range m.Statuses() {
		if s.Phase != slots.Free {
			err = errors.Join(err, fmt.Errorf("slot %d is %s", s.Slot, s.Phase))
		}
	}
	return err
}

func slotCycle(ctx context.Context, m *slots.Manager, uid string, changed <-chan struct{}) error {
	spec := &contract.Spec{InstanceUID: uid, Namespace: tenant, Name: uid, MachineID: "id-" + uid, MACAddress: "mac-" + uid, CPU: 1, MemoryBytes: 1}
	until := func(is func(slots.Status) bool) error {
		deadline := time.After(patience)
		for {
			s, ok := m.Find(uid)
			if ok && is(s) {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			case <-deadline:
				return fmt.Errorf("slot of %s is stuck: %+v", uid, s)
			}
		}
	}
	if err := m.Prepare(spec, func(dir contract.SlotDir) error { return os.WriteFile(dir.DiskPath(), []byte("disk"), 0o600) }); err != nil {
		return err
	}
	if err := m.Launch(uid); err != nil {
		return err
	}
	if err := until(func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.VM == contract.VMRunning }); err != nil {
		return err
	}
	if err := m.Stop(ctx, uid, time.Minute); err != nil {
		return err
	}
	if err := until(func(s slots.Status) bool { return s.Phase == slots.Exited }); err != nil {
		return err
	}
	return m.Erase(uid)
}

func ownUsage() usage {
	for range 3 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	return usage{len(fds), runtime.NumGoroutine(), m.HeapAlloc}
}

// Connections to the API and the like may come and go by chance.
const (
	spareFDs        = 30
	spareGoroutines = 100
	spareHeap       = 16 << 20
)

func grown(before, after usage) error {
	if after.fds > before.fds+spareFDs || after.goroutines > before.goroutines+spareGoroutines || after.heap > before.heap+spareHeap {
		return fmt.Errorf("before: %d files, %d goroutines, %d bytes; after: %d files, %d goroutines, %d bytes",
			before.fds, before.goroutines, before.heap, after.fds, after.goroutines, after.heap)
	}
	return nil
}

// instanceCycles creates and deletes instances, and measures the agent's process.
func (r *run) instanceCycles(ctx context.Context) error {
	cycle := func(n int) error {
		for range n {
			i, err := r.start(ctx)
			if err != nil {
				return err
			}
			if err := r.delete(ctx, i.Name); err != nil {
				return err
			}
		}
		return r.clear(ctx)
	}
	if err := cycle(1 + r.APICycles/10); err != nil {
		return err
	}
	before, err := r.mac.agentUsage(ctx)
	if err != nil {
		return err
	}
	if err := cycle(r.APICycles); err != nil {
		return err
	}
	after, err := r.mac.agentUsage(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "agent after %s more cycles: %d files (%+d), %d goroutines (%+d), heap %d KiB (%+d)\n", strconv.Itoa(r.APICycles),
		after.fds, after.fds-before.fds, after.goroutines, after.goroutines-before.goroutines, after.heap>>10, (int64(after.heap)-int64(before.heap))>>10)
	return errors.Join(grown(before, after), r.settle(ctx))
}
