package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
)

// maxErased bounds the list of a scrub report.
const maxErased = 64

// memory is what an agent must not forget when it starts anew.
type memory struct {
	// Unhealthy is why the slots cannot be trusted until a reboot.
	Unhealthy *unhealthy `json:"unhealthy,omitempty"`
	// LeaseUID is the lease of which Erased is.
	LeaseUID types.UID `json:"leaseUID,omitempty"`
	// Erased lists what was erased since the lease's beginning.
	Erased []string `json:"erased,omitempty"`
	// ErasedMore counts what did not fit into Erased.
	ErasedMore int `json:"erasedMore,omitempty"`
}

type unhealthy struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// BootID is the boot in which it happened: another one cures it.
	BootID string `json:"bootID"`
	// Quarantined: the API has shown the quarantine, so that its absence means that
	// an administrator has ended it.
	Quarantined bool `json:"quarantined,omitempty"`
}

type state struct {
	path string

	mu sync.Mutex
	memory
	// unwritten: memory has what the file has not.
	unwritten bool
}

// openState reads the state. A garbled file is put aside: what it said of a
// quarantine the API knows too, and virtual machines do not depend on it.
func openState(path string) (*state, error) {
	s := &state{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		if err = json.Unmarshal(data, &s.memory); err == nil {
			return s, nil
		}
		s.memory = memory{}
	} else if !errors.Is(err, syscall.EISDIR) && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	aside := path + ".garbled"
	klog.ErrorS(err, "The agent's state cannot be read and is put aside; a new one is begun", "file", path, "aside", aside)
	if err := os.RemoveAll(aside); err != nil {
		return nil, err
	}
	return s, os.Rename(path, aside)
}

func (s *state) get() memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.clone()
}

func (m memory) clone() memory {
	m.Erased = slices.Clone(m.Erased)
	if m.Unhealthy != nil {
		u := *m.Unhealthy
		m.Unhealthy = &u
	}
	return m
}

func (s *state) change(change func(*memory)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.memory.clone()
	change(&next)
	if err := contract.WriteJSON(s.path, next); err != nil {
		return err
	}
	s.memory, s.unwritten = next, false
	return nil
}

// erasing remembers what is about to be removed, for the next scrub report. On a
// full disk that waits until something has been removed: see keep.
func (s *state) erasing(removed []slots.Removed) {
	var paths []string
	for _, r := range removed {
		paths = append(paths, fmt.Sprintf("slots/%s (%d bytes)", r.Path, r.Bytes))
	}
	s.remember(paths...)
}

func (s *state) remember(paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range paths {
		s.add(path)
	}
	s.unwritten = true
	if err := s.write(); err != nil {
		klog.ErrorS(err, "What is erased was not written down yet", "paths", paths)
	}
}

// keep writes what is not written yet.
func (s *state) keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write()
}

func (s *state) write() error {
	if !s.unwritten {
		return nil
	}
	if err := contract.WriteJSON(s.path, s.memory); err != nil {
		return err
	}
	s.unwritten = false
	return nil
}

// leased begins a new list with a new lease.
func (s *state) leased(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.LeaseUID == uid {
		return
	}
	s.LeaseUID, s.Erased, s.ErasedMore = uid, nil, 0
	s.unwritten = true
	if err := s.write(); err != nil {
		klog.ErrorS(err, "The Mac's new lease was not written down yet", "leaseUID", uid)
	}
}

func (m *memory) add(what string) {
	if slices.Contains(m.Erased, what) {
		return // the act was interrupted
	}
	if len(m.Erased) < maxErased-1 {
		m.Erased = append(m.Erased, what)
	} else {
		m.ErasedMore++
	}
}

// report is the list for a scrub report.
func (m *memory) report() []string {
	list := slices.Clone(m.Erased)
	if m.ErasedMore > 0 {
		list = append(list, fmt.Sprintf("and %d more", m.ErasedMore))
	}
	return list
}
