// Package slots is the agent's hold on the Mac's two VM slots. All it knows is on
// disk and in the runners, so an agent that starts anew finds it again.
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

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

// Phase is what a slot holds.
type Phase string

const (
	// Free: no VM, and nothing to report.
	Free Phase = "Free"
	// Preparing: the agent is filling the slot.
	Preparing Phase = "Preparing"
	// Prepared: a spec that has not run yet.
	Prepared Phase = "Prepared"
	// Launching: a runner was started and has not answered yet.
	Launching Phase = "Launching"
	// Attached: a runner owns the slot and answers; State is current.
	Attached Phase = "Attached"
	// Silent: a runner owns the slot and does not answer, or answers for another
	// VM. It cannot be known what runs there.
	Silent Phase = "Silent"
	// Exited: the VM has ended, the runner is gone and the lock is free.
	Exited Phase = "Exited"
)

// Status is a slot at one moment.
type Status struct {
	Slot  int
	Phase Phase
	// Spec is nil when Free and Preparing.
	Spec *contract.Spec
	// State is set when Attached.
	State *contract.State
	// Result is set when Exited.
	Result *contract.Result
	// Err says why a slot is Silent, or why a Prepared one did not launch.
	Err error
}

// UID is the UID of the instance that the slot holds, or empty.
func (s Status) UID() string {
	if s.Spec == nil {
		return ""
	}
	return s.Spec.InstanceUID
}

var (
	// ErrNoFreeSlot means that every slot holds a VM or what is left of one.
	ErrNoFreeSlot = fmt.Errorf("all %d slots of this Mac are taken", rules.MaxVMsPerMac)
	// ErrNotHere means that no slot holds the instance, or not in a phase in which
	// the act makes sense.
	ErrNotHere = errors.New("no slot holds this VM")
)

// Config is what a Manager needs.
type Config struct {
	// Dir gets a directory for each slot. Short, for the sake of socket paths.
	Dir      string
	Launcher Launcher
	Clock    clock.WithTicker
	// AnswerTimeout is how long a runner may keep silent before its slot is
	// Silent. Default 5 s.
	AnswerTimeout time.Duration
	// ProbeInterval is how often a runner is asked whether it still answers.
	// Default 10 s.
	ProbeInterval time.Duration
	// OnChange is called after a slot's status has changed. It must not block.
	OnChange func()
}

// Manager holds the slots.
type Manager struct {
	config Config
	// An array, not a list: a VM beyond the limit has no slot to run in.
	slots [rules.MaxVMsPerMac]*slot
}

// Open makes the slot directories that do not exist, and finds out what each slot
// holds. It waits up to AnswerTimeout for runners that do not answer.
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
	m := &Manager{config: config}
	for i := range m.slots {
		dir := contract.SlotDir(filepath.Join(config.Dir, strconv.Itoa(i)))
		if err := os.MkdirAll(string(dir), 0o700); err != nil {
			return nil, err
		}
		if path := dir.SocketPath(); len(path) > contract.MaxSocketPath {
			return nil, fmt.Errorf("socket path %q has %d bytes, at most %d are allowed: use a shorter state directory", path, len(path), contract.MaxSocketPath)
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

// Run keeps the statuses current until ctx ends. Runners outlive it.
func (m *Manager) Run(ctx context.Context) {
	var monitors sync.WaitGroup
	for _, s := range m.slots {
		monitors.Go(func() { s.monitor(ctx) })
	}
	monitors.Wait()
}

// Statuses returns what each slot holds.
func (m *Manager) Statuses() [rules.MaxVMsPerMac]Status {
	var all [rules.MaxVMsPerMac]Status
	for i, s := range m.slots {
		all[i] = s.get()
	}
	return all
}

// Find returns the slot that holds the instance.
func (m *Manager) Find(uid string) (Status, bool) {
	for _, s := range m.Statuses() {
		if uid != "" && s.UID() == uid {
			return s, true
		}
	}
	return Status{}, false
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
		return nil, fmt.Errorf("%w in phase %v, slot %d is %s", ErrNotHere, phases, status.Slot, status.Phase)
	}
	return m.slots[status.Slot], nil
}

// Prepare fills a free slot for spec: fill makes the disks, and the spec is
// written last, so that an interrupted Prepare leaves a free slot. It returns
// ErrNoFreeSlot if there is none. Nothing runs yet.
func (m *Manager) Prepare(spec *contract.Spec, fill func(contract.SlotDir) error) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if s, ok := m.Find(spec.InstanceUID); ok {
		return fmt.Errorf("slot %d holds instance %s already", s.Slot, spec.InstanceUID)
	}
	for _, s := range m.slots {
		if s.reserve() {
			return s.prepare(spec, fill)
		}
	}
	return ErrNoFreeSlot
}

// Launch starts a runner for a Prepared instance.
func (m *Manager) Launch(uid string) error {
	s, err := m.find(uid, Prepared)
	if err != nil {
		return err
	}
	return s.launch()
}

// Relaunch starts a runner again for an instance whose VM did not start. A VM
// that has run is never started again.
func (m *Manager) Relaunch(uid string) error {
	s, err := m.find(uid, Exited)
	if err != nil {
		return err
	}
	return s.relaunch()
}

// Stop asks the guest to shut down, and has the plug pulled after grace.
func (m *Manager) Stop(ctx context.Context, uid string, grace time.Duration) error {
	s, err := m.find(uid, Attached)
	if err != nil {
		return err
	}
	_, err = s.client.Stop(ctx, grace)
	return err
}

// Kill pulls the plug.
func (m *Manager) Kill(ctx context.Context, uid string) error {
	s, err := m.find(uid, Attached)
	if err != nil {
		return err
	}
	_, err = s.client.Kill(ctx)
	return err
}

// Removed is a file that was erased.
type Removed struct {
	// Path is relative to the slots' directory.
	Path string
	// Bytes is what the file occupied.
	Bytes int64
}

// Erase removes all that is left of an instance that has Exited or never ran.
func (m *Manager) Erase(uid string) ([]Removed, error) {
	s, err := m.find(uid, Exited, Prepared)
	if err != nil {
		return nil, err
	}
	return s.erase()
}

// EraseFree removes what interrupted acts may have left in free slots.
func (m *Manager) EraseFree() ([]Removed, error) {
	var removed []Removed
	for _, s := range m.slots {
		if !s.reserve() {
			continue
		}
		r, err := s.erase()
		removed = append(removed, r...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// Leftovers lists the files of all slots, but for the empty lock files.
func (m *Manager) Leftovers() ([]string, error) {
	var paths []string
	for _, s := range m.slots {
		err := filepath.WalkDir(string(s.dir), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && path != string(s.dir) && path != s.dir.LockPath() {
				paths = append(paths, s.relative(path))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

type slot struct {
	manager *Manager
	number  int
	dir     contract.SlotDir
	client  *contract.Client
	kick    chan struct{}

	mu     sync.Mutex
	status Status
	ended  <-chan error // the end of the launched runner
}

func (s *slot) get() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *slot) set(status Status) {
	status.Slot = s.number
	s.mu.Lock()
	s.status = status
	s.mu.Unlock()
	s.manager.config.OnChange()
}

// fail keeps err for the status Prepared, if that is what the slot turns out to be.
func (s *slot) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
}

func (s *slot) relative(path string) string {
	if r, err := filepath.Rel(s.manager.config.Dir, path); err == nil {
		return r
	}
	return path
}

// reserve turns a Free slot into one that is being prepared.
func (s *slot) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Phase != Free {
		return false
	}
	s.status = Status{Slot: s.number, Phase: Preparing}
	return true
}

func (s *slot) prepare(spec *contract.Spec, fill func(contract.SlotDir) error) (err error) {
	lock, err := s.dir.TryLock()
	if err != nil {
		s.look(context.Background())
		return err
	}
	defer lock.Unlock()
	defer func() {
		if err != nil {
			_, _ = s.wipe()
			s.set(Status{Phase: Free})
		}
	}()
	if _, err := s.wipe(); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir.DiskDir(), 0o700); err != nil {
		return err
	}
	if err := fill(s.dir); err != nil {
		return err
	}
	if err := contract.SyncDir(s.dir.DiskDir()); err != nil {
		return err
	}
	if err := contract.WriteJSON(s.dir.SpecPath(), spec); err != nil {
		return err
	}
	s.set(Status{Phase: Prepared, Spec: spec})
	return nil
}

func (s *slot) launch() error {
	status := s.get()
	// Launching is set first: the runner may be there before Launch returns.
	s.setEnded(nil)
	s.set(Status{Phase: Launching, Spec: status.Spec})
	ended, err := s.manager.config.Launcher.Launch(s.dir)
	if err != nil {
		s.set(Status{Phase: Prepared, Spec: status.Spec, Err: err})
		return err
	}
	s.setEnded(ended)
	s.poke()
	return nil
}

func (s *slot) setEnded(ended <-chan error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = ended
}

func (s *slot) getEnded() <-chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *slot) relaunch() error {
	lock, err := s.dir.TryLock()
	if err != nil {
		return err
	}
	defer lock.Unlock()
	status := s.get()
	if status.Result == nil || status.Result.Reason != contract.ExitStartFailed {
		return fmt.Errorf("instance %s has run and is not started again", status.UID())
	}
	// In this order: interrupted in between, the slot still holds the failed start.
	if err := contract.RemoveFile(s.dir.StartedPath()); err != nil {
		return err
	}
	if err := contract.RemoveFile(s.dir.ResultPath()); err != nil {
		return err
	}
	lock.Unlock()
	return s.launch()
}

func (s *slot) erase() ([]Removed, error) {
	lock, err := s.dir.TryLock()
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	removed, err := s.wipe()
	if err != nil {
		return removed, err
	}
	s.set(Status{Phase: Free})
	return removed, nil
}

// wipe removes all files but the lock. The spec goes first: interrupted, the slot
// is free, and what is left is wiped before its next use.
func (s *slot) wipe() ([]Removed, error) {
	var removed []Removed
	for _, first := range []string{s.dir.SpecPath(), string(s.dir)} {
		err := filepath.WalkDir(first, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || entry.IsDir() || path == s.dir.LockPath() {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			if err := contract.RemoveFile(path); err != nil {
				return err
			}
			removed = append(removed, Removed{Path: s.relative(path), Bytes: disk.Allocated(info)})
			return nil
		})
		if err != nil {
			return removed, err
		}
	}
	entries, err := os.ReadDir(string(s.dir))
	if err != nil {
		return removed, err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := os.RemoveAll(filepath.Join(string(s.dir), entry.Name())); err != nil {
				return removed, err
			}
		}
	}
	return removed, contract.SyncDir(string(s.dir))
}

func (s *slot) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// monitor follows the slot: a runner through its watch, an empty slot not at all.
func (s *slot) monitor(ctx context.Context) {
	for {
		switch s.get().Phase {
		case Attached:
			s.follow(ctx)
		case Launching:
			s.awaitRunner(ctx)
		case Silent:
			select {
			case <-ctx.Done():
			case <-s.manager.config.Clock.After(s.manager.config.ProbeInterval):
			}
		default:
			select {
			case <-ctx.Done():
			case <-s.kick:
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.look(ctx)
	}
}

// follow returns when the runner has ended its watch, died, or fallen silent.
func (s *slot) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	spec := s.get().Spec
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		err := s.client.Watch(ctx, func(state contract.State) {
			// The last state is not shown: the VM has stopped once the lock is free.
			if state.VM != contract.VMStopped {
				s.set(Status{Phase: Attached, Spec: spec, State: &state})
			}
		})
		klog.V(4).InfoS("Watch of runner ended", "slot", s.number, "err", err)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	probe := s.manager.config.Clock.NewTicker(s.manager.config.ProbeInterval)
	defer probe.Stop()
	for {
		select {
		case <-watched:
			return
		case <-probe.C():
			if _, err := s.ask(ctx, s.manager.config.AnswerTimeout); err != nil {
				return
			}
		}
	}
}

// awaitRunner returns when the launched runner answers, ends, or stays away for
// AnswerTimeout.
func (s *slot) awaitRunner(ctx context.Context) {
	deadline := s.manager.config.Clock.After(s.manager.config.AnswerTimeout)
	for {
		if _, err := s.ask(ctx, s.manager.config.AnswerTimeout); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case err := <-s.getEnded():
			if err == nil {
				err = errors.New("the runner ended without running the VM")
			}
			s.fail(fmt.Errorf("%w: see %s", err, filepath.Join(string(s.dir), runnerLog)))
			return
		case <-deadline:
			return
		case <-s.manager.config.Clock.After(20 * time.Millisecond):
		}
	}
}

func (s *slot) ask(ctx context.Context, timeout time.Duration) (*contract.State, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.client.State(ctx)
}

// look finds out what the slot holds, from the lock, the socket and the files. A
// runner that dies lets go of its lock; one that lives has AnswerTimeout to answer.
func (s *slot) look(ctx context.Context) {
	if phase := s.get().Phase; phase == Preparing {
		return
	}
	deadline := s.manager.config.Clock.Now().Add(s.manager.config.AnswerTimeout)
	for {
		lock, err := s.dir.TryLock()
		if err == nil {
			status := s.unlocked()
			lock.Unlock()
			s.set(status)
			return
		}
		spec, readErr := s.dir.ReadSpec()
		state, askErr := s.ask(ctx, max(deadline.Sub(s.manager.config.Clock.Now()), time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return
		case !errors.Is(err, contract.ErrLocked):
			s.set(Status{Phase: Silent, Spec: spec, Err: err})
			return
		case readErr != nil:
			s.set(Status{Phase: Silent, Err: readErr})
			return
		case askErr == nil && state.VM == contract.VMStopped:
			// The runner is about to let go of the lock.
		case askErr == nil && spec != nil && spec.InstanceUID == state.InstanceUID:
			s.set(Status{Phase: Attached, Spec: spec, State: state})
			return
		case askErr == nil:
			s.set(Status{Phase: Silent, Spec: spec, Err: fmt.Errorf("the runner (pid %d) runs instance %s, which is not this slot's", state.PID, state.InstanceUID)})
			return
		}
		if !s.manager.config.Clock.Now().Before(deadline) {
			s.set(Status{Phase: Silent, Spec: spec, Err: fmt.Errorf("the slot is locked and its runner does not answer: %w", askErr)})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.manager.config.Clock.After(20 * time.Millisecond):
		}
	}
}

// unlocked tells what a slot holds that no runner owns.
func (s *slot) unlocked() Status {
	spec, err := s.dir.ReadSpec()
	if err != nil {
		return Status{Phase: Silent, Err: err}
	}
	if spec == nil {
		return Status{Phase: Free}
	}
	result, err := s.dir.ReadResult()
	if err != nil {
		return Status{Phase: Silent, Spec: spec, Err: err}
	}
	if result != nil {
		return Status{Phase: Exited, Spec: spec, Result: result}
	}
	started, err := s.dir.ReadStarted()
	if err != nil {
		return Status{Phase: Silent, Spec: spec, Err: err}
	}
	if started == nil {
		return Status{Phase: Prepared, Spec: spec, Err: s.get().Err}
	}
	return Status{Phase: Exited, Spec: spec, Result: &contract.Result{
		InstanceUID: spec.InstanceUID,
		Reason:      contract.ExitVanished,
		EndedAt:     s.manager.config.Clock.Now(),
	}}
}
