// Package slots manages the Mac's two VM slots. All state is on disk and in the runners, so a
// restarted agent finds it again.
package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

// Phase is the phase of a slot.
type Phase string

const (
	// Free: the slot holds no VM and no result.
	Free Phase = "Free"
	// Preparing: the agent is filling the slot.
	Preparing Phase = "Preparing"
	// Prepared: the slot holds a spec that has not run.
	Prepared Phase = "Prepared"
	// Launching: a runner was started and has not responded yet.
	Launching Phase = "Launching"
	// Attached: a runner owns the slot and responds; State is current.
	Attached Phase = "Attached"
	// Unreachable: a runner owns the slot and does not respond, or reports another VM. The VM that
	// runs there is unknown.
	Unreachable Phase = "Unreachable"
	// Exited: the VM has ended, the runner is gone and the lock is free.
	Exited Phase = "Exited"
	// Corrupt: no VM runs, and the files cannot be read. The slot must be erased.
	Corrupt Phase = "Corrupt"
)

// Status is the status of a slot at one moment.
type Status struct {
	Slot  int
	Phase Phase
	// Spec is nil when Free, Preparing or Corrupt, and when Unreachable if it cannot be read.
	Spec *contract.Spec
	// State is set when Attached.
	State *contract.State
	// Result is set when Exited.
	Result *contract.Result
	// Err is the reason why a slot is Unreachable or Corrupt, or why a Prepared one did not launch.
	Err error
}

// UID returns the UID of the instance in the slot, or an empty string.
func (s Status) UID() string {
	if s.Spec == nil {
		return ""
	}
	return s.Spec.InstanceUID
}

// owned reports whether a runner holds the slot, or may soon.
func (s Status) owned() bool {
	return s.Phase == Attached || s.Phase == Unreachable || s.Phase == Launching
}

var (
	// ErrNoFreeSlot means that every slot holds a VM or the remains of one.
	ErrNoFreeSlot = fmt.Errorf("all %d slots of this Mac are in use", rules.MaxVMsPerMac)
	// ErrNotHere means that no slot holds the instance in a suitable phase.
	ErrNotHere = errors.New("no slot holds this VM")
	// ErrDuplicateIdentity means that another VM on this Mac has the same machine ID or MAC
	// address.
	ErrDuplicateIdentity = errors.New("a VM on this Mac already has this identity")
)

// Config configures a Manager.
type Config struct {
	// Dir holds a directory for each slot. It must be short, because it is part of socket paths.
	Dir      string
	Launcher Launcher
	Clock    clock.WithTicker
	// AnswerTimeout is the time limit for a runner to respond. After it, the slot is Unreachable.
	// The default is 5 s.
	AnswerTimeout time.Duration
	// ProbeInterval is the interval of probes of a runner. The default is 10 s.
	ProbeInterval time.Duration
	// OnChange is called after a slot's status has changed. It must not block.
	OnChange func()
	// OnErase receives the files that are about to be removed. After an interruption it may receive
	// them again.
	OnErase func([]Removed)
}

// Manager manages the slots.
type Manager struct {
	config Config
	// The array enforces the limit: another VM has no slot to run in.
	slots [rules.MaxVMsPerMac]*slot
}

// Open creates missing slot directories and determines the status of each slot. It waits up to
// AnswerTimeout for unresponsive runners.
func Open(config Config) (*Manager, error) {
	if config.AnswerTimeout == 0 {
		config.AnswerTimeout = 5 * time.Second
	}
	if config.ProbeInterval == 0 {
		config.ProbeInterval = 10 * time.Second
	}
	if config.OnChange == nil {
		config.OnChange = func() {}
	}
	if config.OnErase == nil {
		config.OnErase = func([]Removed) {}
	}
	m := &Manager{config: config}
	for i := range m.slots {
		dir := contract.SlotDir(filepath.Join(config.Dir, strconv.Itoa(i)))
		if err := claim(dir); err != nil {
			return nil, err
		}
		if path := dir.SocketPath(); len(path) > contract.MaxSocketPath {
			return nil, fmt.Errorf("socket path %q has %d bytes, and the limit is %d; use a shorter state directory", path, len(path), contract.MaxSocketPath)
		}
		m.slots[i] = &slot{manager: m, number: i, dir: dir, client: contract.NewClient(dir), kick: make(chan struct{}, 1)}
	}
	var opened sync.WaitGroup
	for _, s := range m.slots {
		opened.Go(func() { s.look(context.Background()) })
	}
	opened.Wait()
	return m, nil
}

// claim creates the slot's directory and restricts it to this user.
func claim(dir contract.SlotDir) error {
	if err := os.MkdirAll(string(dir), 0o700); err != nil {
		return err
	}
	for _, path := range []string{filepath.Dir(string(dir)), string(dir)} {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is a %s, not a directory; remove it", path, info.Mode().Type())
		}
		if err := os.Chmod(path, 0o700); err != nil {
			return fmt.Errorf("%w; it must belong to the user of the agent", err)
		}
		if err := contract.SyncDir(filepath.Dir(path)); err != nil {
			return err
		}
	}
	// Only a regular file can be locked, so no runner holds this one.
	switch info, err := os.Lstat(dir.LockPath()); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return os.RemoveAll(dir.LockPath())
	default:
		return os.Chmod(dir.LockPath(), 0o600)
	}
}

// Run keeps the statuses current until ctx ends. Runners outlive it.
func (m *Manager) Run(ctx context.Context) {
	var monitors sync.WaitGroup
	for _, s := range m.slots {
		monitors.Go(func() { s.monitor(ctx) })
	}
	monitors.Wait()
}

// Statuses returns the status of each slot.
func (m *Manager) Statuses() [rules.MaxVMsPerMac]Status {
	var all [rules.MaxVMsPerMac]Status
	for i, s := range m.slots {
		all[i] = s.get()
	}
	return all
}

// Find returns the slot that holds the instance. If several do, the one with a runner takes
// precedence.
func (m *Manager) Find(uid string) (found Status, ok bool) {
	for _, s := range m.Statuses() {
		if uid != "" && s.UID() == uid && (!ok || s.owned() && !found.owned()) {
			found, ok = s, true
		}
	}
	return found, ok
}

// Dir returns the directory of the slot that holds the instance.
func (m *Manager) Dir(uid string) (contract.SlotDir, error) {
	s, err := m.find(uid)
	if err != nil {
		return "", err
	}
	return s.dir, nil
}

func (m *Manager) find(uid string, phases ...Phase) (*slot, error) {
	status, ok := m.Find(uid)
	if !ok {
		return nil, ErrNotHere
	}
	for _, phase := range phases {
		if status.Phase == phase {
			phases = nil
		}
	}
	if len(phases) > 0 {
		return nil, fmt.Errorf("%w in phase %v; slot %d is %s", ErrNotHere, phases, status.Slot, status.Phase)
	}
	return m.slots[status.Slot], nil
}

// Prepare fills a free slot for spec. fill creates the disks, and the spec is written last, so that
// an interrupted Prepare leaves a free slot. It returns ErrNoFreeSlot without a free slot, and
// ErrDuplicateIdentity if another slot has the identity. It does not start the VM.
func (m *Manager) Prepare(spec *contract.Spec, fill func(contract.SlotDir) error) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if s, ok := m.Find(spec.InstanceUID); ok {
		return fmt.Errorf("slot %d already holds instance %s", s.Slot, spec.InstanceUID)
	}
	for _, s := range m.Statuses() {
		if s.Spec != nil && (s.Spec.MachineID == spec.MachineID || s.Spec.MACAddress == spec.MACAddress) {
			return fmt.Errorf("%w: slot %d has instance %s/%s with machine ID %s and MAC address %s", ErrDuplicateIdentity,
				s.Slot, s.Spec.Namespace, s.Spec.Name, s.Spec.MachineID, s.Spec.MACAddress)
		}
	}
	for _, s := range m.slots {
		if s.reserve() {
			return s.prepare(spec, fill)
		}
	}
	return ErrNoFreeSlot
}

// Launch starts a runner for a Prepared instance. After an error the status is determined again: a
// failed launcher may have started the runner.
func (m *Manager) Launch(uid string) error {
	s, err := m.find(uid, Prepared)
	if err != nil {
		return err
	}
	return s.launch()
}

// Relaunch starts a runner again for an instance whose VM did not start. A VM that has run is never
// restarted.
func (m *Manager) Relaunch(uid string) error {
	s, err := m.find(uid, Exited)
	if err != nil {
		return err
	}
	return s.relaunch()
}

// Stop asks the guest to shut down and forces the VM off after grace. The runner must confirm the
// order within AnswerTimeout.
func (m *Manager) Stop(ctx context.Context, uid string, grace time.Duration) error {
	s, err := m.find(uid, Attached)
	if err != nil {
		return err
	}
	return m.StopSlot(ctx, s.number, grace)
}

// StopSlot is like Stop, for the VM in a slot.
func (m *Manager) StopSlot(ctx context.Context, slot int, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, m.config.AnswerTimeout)
	defer cancel()
	_, err := m.slots[slot].client.Stop(ctx, grace)
	return err
}

// KillRunner kills the process that runs the VM of a slot, and the VM with it. It is for a runner
// that ignores Stop and Kill.
func (m *Manager) KillRunner(ctx context.Context, slot int) error {
	s := m.slots[slot]
	ctx, cancel := context.WithTimeout(ctx, m.config.AnswerTimeout)
	defer cancel()
	defer s.poke()
	return s.dir.KillRunner(ctx)
}

// Kill forces the VM off. The runner must confirm the order within AnswerTimeout.
func (m *Manager) Kill(ctx context.Context, uid string) error {
	s, err := m.find(uid, Attached)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.AnswerTimeout)
	defer cancel()
	_, err = s.client.Kill(ctx)
	return err
}
