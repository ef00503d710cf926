package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
)

// maxErased bounds the list of a scrub report.
const maxErased = 64

// memory is what an agent must not forget when it starts anew.
type memory struct {
	// Unhealthy is why the slots cannot be trusted until a reboot.
	Unhealthy *unhealthy `json:"unhealthy,omitempty"`
	// Erased lists what was erased since the last scrub report.
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
}

func openState(path string) (*state, error) {
	s := &state{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &s.memory); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
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
	s.memory = next
	return nil
}

// erased remembers what was removed, for the next scrub report.
func (s *state) erased(removed []slots.Removed) error {
	if len(removed) == 0 {
		return nil
	}
	return s.change(func(m *memory) {
		for _, r := range removed {
			m.add(fmt.Sprintf("slots/%s (%d bytes)", r.Path, r.Bytes))
		}
	})
}

func (m *memory) add(what string) {
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
