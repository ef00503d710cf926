package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
)

type slot struct {
	manager *Manager
	number  int
	dir     contract.SlotDir
	client  *contract.Client
	kick    chan struct{}

	// acting is held together with the slot's lock: the lock excludes other processes, acting
	// serializes the goroutines of this one.
	acting sync.Mutex

	mu     sync.Mutex
	status Status
	ended  <-chan error // the end of the launched runner
}

// lockPatience is the time for which a taken lock is retried. A process inherits the descriptors of
// its parent until it executes its program, and with them a lock that the parent has already
// released.
const (
	lockPatience = 2 * time.Second
	lockPause    = 10 * time.Millisecond
)

// take takes the slot's lock and retries until patience has elapsed. release may be called more
// than once.
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

// fail keeps err for the status, in case that is Prepared.
func (s *slot) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
}

// reserve turns a Free slot into a Preparing one.
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

// giveBack ends a reservation and updates the status of the slot.
func (s *slot) giveBack() {
	status, _ := s.inspect(context.Background())
	if status.Phase != Free {
		s.set(status)
		s.poke()
		return
	}
	// No notification is needed: the caller that had reserved the slot retries.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = Status{Slot: s.number, Phase: Free}
}

func (s *slot) launch() error {
	status := s.get()
	// Launching is set first: the runner may respond before Launch returns.
	s.setEnded(nil)
	s.set(Status{Phase: Launching, Spec: status.Spec})
	faults.At("launch: before")
	ended, err := s.manager.config.Launcher.Launch(s.dir)
	faults.At("launch: after")
	if err != nil {
		// A launcher that fails or hangs may have started the runner nevertheless.
		s.fail(err)
		s.look(context.Background())
		s.poke()
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
		return fmt.Errorf("instance %s has run and cannot be restarted", status.UID())
	}
	// The order matters: after an interruption the slot still holds the failed start.
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
	case errors.Is(err, contract.ErrLocked):
		// A late runner holds the slot.
		s.look(context.Background())
		s.poke()
	}
	return err
}

func (s *slot) wipeLocked() error {
	release, err := s.take(lockPatience)
	if err != nil {
		return err
	}
	defer release()
	if s.get().Phase == Prepared {
		if found := s.unlocked(context.Background()); found.Phase == Exited || found.Phase == Unreachable {
			s.set(found)
			s.poke()
			return fmt.Errorf("%w: it may have started meanwhile, and slot %d is %s", ErrNotHere, s.number, found.Phase)
		}
	}
	return s.wipe()
}

// wipe removes all files except the lock. The spec goes first: after an interruption the slot is
// Free, and the rest is removed before its next use.
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

// wiped maps the random names of temporary files to one name.
func wiped(name string) string {
	if strings.HasPrefix(name, ".") {
		return "a temporary file"
	}
	return name
}
