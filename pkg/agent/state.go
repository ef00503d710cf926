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

// memory is the state that survives a restart of the agent.
type memory struct {
	// Unhealthy is the reason why the slots cannot be trusted until a reboot.
	Unhealthy *unhealthy `json:"unhealthy,omitempty"`
	// LeaseUID is the lease that Erased belongs to.
	LeaseUID types.UID `json:"leaseUID,omitempty"`
	// Erased lists the files erased since the start of the lease.
	Erased []string `json:"erased,omitempty"`
	// ErasedMore counts the files beyond the limit of Erased.
	ErasedMore int `json:"erasedMore,omitempty"`
}

type unhealthy struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// BootID is the boot in which it happened; another boot clears it.
	BootID string `json:"bootID"`
	// Quarantined reports whether the API has shown the quarantine. If it has, a missing quarantine
	// means that an administrator ended it.
	Quarantined bool `json:"quarantined,omitempty"`
}

type state struct {
	path string

	mu sync.Mutex
	memory
	// unwritten reports whether memory is newer than the file.
	unwritten bool
}

// openState reads the state. It moves an unreadable file aside: the API also has the quarantine,
// and virtual machines do not depend on the file.
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
	klog.ErrorS(err, "Agent state unreadable; file moved aside and new state created", "file", path, "aside", aside)
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

// erasing remembers the files that are about to be removed, for the next scrub report. On a full
// disk the state is written after files have been removed: see keep.
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
		klog.ErrorS(err, "Failed to write the list of erased files", "paths", paths)
	}
}

// keep writes the state if it is unwritten.
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

// leased starts a new list for a new lease.
func (s *state) leased(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.LeaseUID == uid {
		return
	}
	s.LeaseUID, s.Erased, s.ErasedMore = uid, nil, 0
	s.unwritten = true
	if err := s.write(); err != nil {
		klog.ErrorS(err, "Failed to write the Mac's new lease", "leaseUID", uid)
	}
}

func (m *memory) add(what string) {
	if slices.Contains(m.Erased, what) {
		return // an interrupted erase is repeated
	}
	if len(m.Erased) < maxErased-1 {
		m.Erased = append(m.Erased, what)
	} else {
		m.ErasedMore++
	}
}

// report returns the list for a scrub report.
func (m *memory) report() []string {
	list := slices.Clone(m.Erased)
	if m.ErasedMore > 0 {
		list = append(list, fmt.Sprintf("and %d more", m.ErasedMore))
	}
	return list
}
