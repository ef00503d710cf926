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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
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
	// Garbled: nothing runs, and what the slot held cannot be read. It is to be
	// erased.
	Garbled Phase = "Garbled"
)

// Status is a slot at one moment.
type Status struct {
	Slot  int
	Phase Phase
	// Spec is nil when Free, Preparing and Garbled, and when Silent if it cannot be
	// read.
	Spec *contract.Spec
	// State is set when Attached.
	State *contract.State
	// Result is set when Exited.
	Result *contract.Result
	// Err says why a slot is Silent or Garbled, or why a Prepared one did not launch.
	Err error
}

// UID is the UID of the instance that the slot holds, or empty.
func (s Status) UID() string {
	if s.Spec == nil {
		return ""
	}
	return s.Spec.InstanceUID
}

// owned tells whether a runner has the slot, or is about to.
func (s Status) owned() bool { return s.Phase == Attached || s.Phase == Silent || s.Phase == Launching }

var (
	// ErrNoFreeSlot means that every slot holds a VM or what is left of one.
	ErrNoFreeSlot = fmt.Errorf("all %d slots of this Mac are taken", rules.MaxVMsPerMac)
	// ErrNotHere means that no slot holds the instance, or not in a phase in which
	// the act makes sense.
	ErrNotHere = errors.New("no slot holds this VM")
	// ErrDuplicateIdentity means that a VM on this Mac has the machine ID or the MAC
	// address already.
	ErrDuplicateIdentity = errors.New("a VM on this Mac has this identity already")
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
	// OnErase is told what is about to be removed: should the agent end in between,
	// it is known, and may be told again.
	OnErase func([]Removed)
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

// claim makes the slot's directory, and sees to it that it is this user's alone.
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
			return fmt.Errorf("%s is a %s and must be a directory: remove it", path, info.Mode().Type())
		}
		if err := os.Chmod(path, 0o700); err != nil {
			return fmt.Errorf("%w: it must belong to the user of the agent", err)
		}
		if err := contract.SyncDir(filepath.Dir(path)); err != nil {
			return err
		}
	}
	// What is no file cannot be locked, so that nobody has locked it.
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

// Statuses returns what each slot holds.
func (m *Manager) Statuses() [rules.MaxVMsPerMac]Status {
	var all [rules.MaxVMsPerMac]Status
	for i, s := range m.slots {
		all[i] = s.get()
	}
	return all
}

// Find returns the slot that holds the instance. Should more than one claim to, it
// is the one with a runner.
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
		return nil, fmt.Errorf("%w in phase %v, slot %d is %s", ErrNotHere, phases, status.Slot, status.Phase)
	}
	return m.slots[status.Slot], nil
}

// Prepare fills a free slot for spec: fill makes the disks, and the spec is
// written last, so that an interrupted Prepare leaves a free slot. It returns
// ErrNoFreeSlot if there is none, and ErrDuplicateIdentity if another slot has the
// identity. Nothing runs yet.
func (m *Manager) Prepare(spec *contract.Spec, fill func(contract.SlotDir) error) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if s, ok := m.Find(spec.InstanceUID); ok {
		return fmt.Errorf("slot %d holds instance %s already", s.Slot, spec.InstanceUID)
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

// StopSlot is Stop for whatever runs in a slot.
func (m *Manager) StopSlot(ctx context.Context, slot int, grace time.Duration) error {
	_, err := m.slots[slot].client.Stop(ctx, grace)
	return err
}

// KillRunner ends the process that runs the VM of a slot, and so the VM: for a
// runner that does not do as it is told.
func (m *Manager) KillRunner(ctx context.Context, slot int) error {
	s := m.slots[slot]
	ctx, cancel := context.WithTimeout(ctx, m.config.AnswerTimeout)
	defer cancel()
	defer s.poke()
	return s.dir.KillRunner(ctx)
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
func (m *Manager) Erase(uid string) error {
	s, err := m.find(uid, Exited, Prepared)
	if err != nil {
		return err
	}
	return s.erase()
}

// EraseSlot removes all that a slot holds that has Exited, never ran or is Garbled.
func (m *Manager) EraseSlot(slot int) error {
	s := m.slots[slot]
	switch phase := s.get().Phase; phase {
	case Exited, Prepared, Garbled:
		return s.erase()
	default:
		return fmt.Errorf("%w: slot %d is %s", ErrNotHere, slot, phase)
	}
}

// EraseFree removes what interrupted acts may have left in free slots, and whatever
// else is beside the slots. It goes on after an error, and returns all of them.
func (m *Manager) EraseFree() error {
	var errs []error
	for _, s := range m.slots {
		if s.reserve() {
			errs = append(errs, s.erase())
		}
	}
	strangers, err := m.strangers()
	errs = append(errs, err)
	for _, path := range strangers {
		removed, err := list(path, m.relative, func(string) bool { return true })
		errs = append(errs, err)
		if len(removed) > 0 {
			m.config.OnErase(removed)
		}
		errs = append(errs, os.RemoveAll(path))
	}
	if len(strangers) > 0 {
		errs = append(errs, contract.SyncDir(m.config.Dir))
	}
	return errors.Join(errs...)
}

// strangers lists what is in the directory of the slots and is no slot.
func (m *Manager) strangers() ([]string, error) {
	entries, err := os.ReadDir(m.config.Dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		path := filepath.Join(m.config.Dir, entry.Name())
		if !slices.ContainsFunc(m.slots[:], func(s *slot) bool { return string(s.dir) == path }) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// Leftovers lists what the directory of the slots has besides the slots and their
// empty lock files.
func (m *Manager) Leftovers() ([]string, error) {
	paths, err := m.strangers()
	if err != nil {
		return nil, err
	}
	for i, path := range paths {
		paths[i] = m.relative(path)
	}
	for _, s := range m.slots {
		err := filepath.WalkDir(string(s.dir), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && path != string(s.dir) && path != s.dir.LockPath() {
				paths = append(paths, m.relative(path))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func (m *Manager) relative(path string) string {
	if r, err := filepath.Rel(m.config.Dir, path); err == nil {
		return r
	}
	return path
}

// list says what removing path would remove.
func list(path string, name func(string) string, goes func(string) bool) ([]Removed, error) {
	var removed []Removed
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || !goes(path) {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		removed = append(removed, Removed{Path: name(path), Bytes: disk.Allocated(info)})
		return nil
	})
	return removed, err
}

type slot struct {
	manager *Manager
	number  int
	dir     contract.SlotDir
	client  *contract.Client
	kick    chan struct{}

	// acting is held with the slot's lock, which keeps out other processes: what this
	// one does waits for its turn.
	acting sync.Mutex

	mu     sync.Mutex
	status Status
	ended  <-chan error // the end of the launched runner
}

// lockPatience is how long a lock that is taken is tried again. A process that is
// just being started has the descriptors of its parent until it runs its program,
// and so a lock that its parent has given up meanwhile.
const (
	lockPatience = 200 * time.Millisecond
	lockPause    = 10 * time.Millisecond
)

// take takes the slot's lock, trying for as long as patience lasts; release may be
// called more than once.
func (s *slot) take(patience time.Duration) (release func(), err error) {
	s.acting.Lock()
	lock, err := s.dir.TryLock()
	for waited := time.Duration(0); errors.Is(err, contract.ErrLocked) && waited < patience; waited += lockPause {
		<-s.manager.config.Clock.After(lockPause)
		lock, err = s.dir.TryLock()
	}
	if err != nil {
		s.acting.Unlock()
		return nil, err
	}
	return sync.OnceFunc(func() {
		lock.Unlock()
		s.acting.Unlock()
	}), nil
}

func (s *slot) get() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *slot) set(status Status) {
	status.Slot = s.number
	if status.Phase == Attached {
		faults.At("attached " + status.UID())
	}
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
	release, err := s.take(lockPatience)
	if err != nil {
		s.giveBack()
		return err
	}
	defer func() {
		if err != nil {
			_ = s.wipe()
			release()
			s.giveBack()
			return
		}
		release()
		s.set(Status{Phase: Prepared, Spec: spec})
	}()
	if err := s.wipe(); err != nil {
		return err
	}
	if err := faults.Write(s.dir.DiskDir()); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir.DiskDir(), 0o700); err != nil {
		return err
	}
	faults.At("prepare: emptied")
	if err := fill(s.dir); err != nil {
		return err
	}
	if err := contract.SyncDir(s.dir.DiskDir()); err != nil {
		return err
	}
	faults.At("prepare: filled")
	return contract.WriteJSON(s.dir.SpecPath(), spec)
}

// giveBack ends a reservation: the slot is what it turns out to be.
func (s *slot) giveBack() {
	status, _ := s.inspect(context.Background())
	if status.Phase != Free {
		s.set(status)
		s.poke()
		return
	}
	// Nobody is told: whoever had reserved it knows, and tries again in good time.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = Status{Slot: s.number, Phase: Free}
}

func (s *slot) launch() error {
	status := s.get()
	// Launching is set first: the runner may be there before Launch returns.
	s.setEnded(nil)
	s.set(Status{Phase: Launching, Spec: status.Spec})
	faults.At("launch: before")
	ended, err := s.manager.config.Launcher.Launch(s.dir)
	faults.At("launch: after")
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
	release, err := s.take(lockPatience)
	if err != nil {
		return err
	}
	defer release()
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
	release()
	return s.launch()
}

func (s *slot) erase() error {
	err := s.wipeLocked()
	switch {
	case err == nil:
		s.set(Status{Phase: Free})
	case s.get().Phase == Preparing:
		s.giveBack()
	}
	return err
}

func (s *slot) wipeLocked() error {
	release, err := s.take(lockPatience)
	if err != nil {
		return err
	}
	defer release()
	return s.wipe()
}

// wipe removes everything but the lock. The spec goes first: interrupted, the slot
// is free, and what is left is wiped before its next use.
func (s *slot) wipe() error {
	goes := func(path string) bool { return path != s.dir.LockPath() }
	removed, err := list(string(s.dir), s.manager.relative, goes)
	if err != nil {
		return err
	}
	if len(removed) > 0 {
		s.manager.config.OnErase(removed)
	}
	entries, err := os.ReadDir(string(s.dir))
	if err != nil {
		return err
	}
	faults.Undoable(s.dir.SpecPath())
	if err := os.RemoveAll(s.dir.SpecPath()); err != nil {
		return err
	}
	if err := contract.SyncDir(string(s.dir)); err != nil {
		return err
	}
	faults.At("wipe: spec gone")
	for _, entry := range entries {
		if path := filepath.Join(string(s.dir), entry.Name()); goes(path) {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			faults.At("wipe: removed " + wiped(entry.Name()))
		}
	}
	return contract.SyncDir(string(s.dir))
}

// wiped is a name for a place: temporary files have one at random.
func wiped(name string) string {
	if strings.HasPrefix(name, ".") {
		return "a temporary file"
	}
	return name
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

// look finds out what the slot holds, unless the agent is filling it.
func (s *slot) look(ctx context.Context) {
	if s.get().Phase == Preparing {
		return
	}
	if status, ok := s.inspect(ctx); ok {
		s.set(status)
	}
}

// inspect finds out what the slot holds, from the lock, the socket and the files. A
// runner that dies lets go of its lock; one that lives has AnswerTimeout to answer.
// It is not ok if ctx has ended before.
func (s *slot) inspect(ctx context.Context) (status Status, ok bool) {
	deadline := s.manager.config.Clock.Now().Add(s.manager.config.AnswerTimeout)
	for {
		release, err := s.take(0)
		if err == nil {
			defer release()
			return s.unlocked(ctx), true
		}
		spec, readErr := s.readSpec()
		state, askErr := s.ask(ctx, max(deadline.Sub(s.manager.config.Clock.Now()), time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return Status{}, false
		case !errors.Is(err, contract.ErrLocked):
			return Status{Phase: Silent, Spec: spec, Err: err}, true
		case readErr != nil && !errors.Is(readErr, contract.ErrGarbled):
			return Status{Phase: Silent, Err: readErr}, true
		case askErr == nil && state.VM == contract.VMStopped:
			// The runner is about to let go of the lock.
		case askErr == nil && spec == nil && state.InstanceUID != "":
			// The runner knows what it runs.
			return Status{Phase: Attached, State: state, Spec: &contract.Spec{
				InstanceUID: state.InstanceUID, Namespace: state.Namespace, Name: state.Name, MachineID: state.MachineID, MACAddress: state.MACAddress,
			}}, true
		case askErr == nil && spec != nil && spec.InstanceUID == state.InstanceUID:
			return Status{Phase: Attached, Spec: spec, State: state}, true
		case askErr == nil:
			return Status{Phase: Silent, Spec: spec, Err: fmt.Errorf("the runner (pid %d) runs instance %s, which is not this slot's", state.PID, state.InstanceUID)}, true
		}
		if !s.manager.config.Clock.Now().Before(deadline) {
			return Status{Phase: Silent, Spec: spec, Err: fmt.Errorf("the slot is locked and its runner does not answer: %w", errors.Join(askErr, readErr))}, true
		}
		select {
		case <-ctx.Done():
			return Status{}, false
		case <-s.manager.config.Clock.After(20 * time.Millisecond):
		}
	}
}

// readSpec reads the spec; one that identifies no VM is ErrGarbled.
func (s *slot) readSpec() (*contract.Spec, error) {
	spec, err := s.dir.ReadSpec()
	if err != nil || spec == nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", contract.ErrGarbled, s.dir.SpecPath(), err)
	}
	return spec, nil
}

// unlocked tells what a slot holds that no runner owns. The lock is held.
func (s *slot) unlocked(ctx context.Context) Status {
	spec, err := s.readSpec()
	if known := s.get(); known.owned() && known.Spec != nil && (errors.Is(err, contract.ErrGarbled) || err == nil && spec == nil) {
		spec, err = known.Spec, nil // what ran here is known, whatever has become of the file
	}
	// A runner closes its socket before it lets go of the lock. If somebody answers,
	// the lock is not the one that the runner has.
	if conn, dialErr := s.dir.Dial(ctx); dialErr == nil {
		_ = conn.Close()
		return Status{Phase: Silent, Spec: spec, Err: errors.New("a process serves the slot's socket without the slot's lock")}
	}
	switch {
	case errors.Is(err, contract.ErrGarbled):
		return Status{Phase: Garbled, Err: err}
	case err != nil:
		return Status{Phase: Silent, Err: err}
	case spec == nil:
		return Status{Phase: Free}
	}
	result, err := s.dir.ReadResult()
	if err == nil && result != nil && (result.Reason == "" || result.InstanceUID != spec.InstanceUID) {
		err = fmt.Errorf("%w: %s is not of instance %s", contract.ErrGarbled, s.dir.ResultPath(), spec.InstanceUID)
	}
	switch {
	case errors.Is(err, contract.ErrGarbled):
		return s.vanished(spec, err)
	case err != nil:
		return Status{Phase: Silent, Spec: spec, Err: err}
	case result != nil:
		return Status{Phase: Exited, Spec: spec, Result: result}
	}
	if _, err := os.Lstat(s.dir.StartedPath()); errors.Is(err, fs.ErrNotExist) {
		return Status{Phase: Prepared, Spec: spec, Err: s.get().Err}
	} else if err != nil {
		return Status{Phase: Silent, Spec: spec, Err: err}
	}
	return s.vanished(spec, nil)
}

// vanished is the status of a slot whose runner is gone without a word. From the
// moment at which it had the slot the VM may have run.
func (s *slot) vanished(spec *contract.Spec, cause error) Status {
	result := &contract.Result{InstanceUID: spec.InstanceUID, Reason: contract.ExitVanished, EndedAt: s.manager.config.Clock.Now()}
	if cause != nil {
		result.Error = &contract.Error{Domain: "macrack.io/slots", Message: cause.Error()}
	}
	if started, err := s.dir.ReadStarted(); err == nil && started != nil && !started.At.IsZero() {
		result.StartedAt = &started.At
	}
	return Status{Phase: Exited, Spec: spec, Result: result}
}
