package slots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/vm/contract"
)

// Removed is a file that was erased.
type Removed struct {
	// Path is relative to the slots' directory.
	Path string
	// Bytes is the size of the file on disk.
	Bytes int64
}

// Erase removes the files of an instance that has Exited or never ran. A late runner may hold a
// Prepared slot: then Erase removes nothing and returns contract.ErrLocked or ErrNotHere.
func (m *Manager) Erase(uid string) error {
	s, err := m.find(uid, Exited, Prepared)
	if err != nil {
		return err
	}
	return s.erase()
}

// EraseSlot erases a slot that has Exited, never ran or is Corrupt. See Erase for a slot that a
// late runner holds.
func (m *Manager) EraseSlot(slot int) error {
	s := m.slots[slot]
	switch phase := s.get().Phase; phase {
	case Exited, Prepared, Corrupt:
		return s.erase()
	default:
		return fmt.Errorf("%w: slot %d is %s", ErrNotHere, slot, phase)
	}
}

// EraseFree removes the remains of interrupted operations in free slots, and foreign files next to
// the slots. It continues after an error and returns all errors.
func (m *Manager) EraseFree() error {
	var errs []error
	for _, s := range m.slots {
		if s.reserve() {
			errs = append(errs, s.erase())
		}
	}
	foreign, err := m.foreignFiles()
	errs = append(errs, err)
	for _, path := range foreign {
		removed, err := list(path, m.relative, func(string) bool { return true })
		errs = append(errs, err)
		if len(removed) > 0 {
			m.config.OnErase(removed)
		}
		errs = append(errs, os.RemoveAll(path))
	}
	if len(foreign) > 0 {
		errs = append(errs, contract.SyncDir(m.config.Dir))
	}
	return errors.Join(errs...)
}

// foreignFiles lists the entries of the slots' directory that are not slots.
func (m *Manager) foreignFiles() ([]string, error) {
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

// Leftovers lists the files in the directory of the slots other than the slots and their empty lock
// files.
func (m *Manager) Leftovers() ([]string, error) {
	paths, err := m.foreignFiles()
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

// list returns the files that the removal of path would remove.
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
