// Package state keeps the agent's state that survives a restart: whether the slots can be trusted,
// and the files that were erased during the lease.
package state

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

// MaxErased bounds the lists of a scrub report.
const MaxErased = 64

// Data is the content of the file.
type Data struct {
	// Unhealthy is the reason why the slots cannot be trusted until a reboot.
	Unhealthy *Unhealthy `json:"unhealthy,omitempty"`
	// LeaseUID is the lease that Erased belongs to.
	LeaseUID types.UID `json:"leaseUID,omitempty"`
	// Erased lists the files erased since the start of the lease.
	Erased []string `json:"erased,omitempty"`
	// ErasedMore counts the files beyond the limit of Erased.
	ErasedMore int `json:"erasedMore,omitempty"`
}

// Unhealthy is a reason not to trust the slots.
type Unhealthy struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// BootID is the boot in which it happened; another boot clears it.
	BootID string `json:"bootID"`
	// Quarantined reports whether the API has shown the quarantine. If it has, a missing quarantine
	// means that an administrator ended it.
	Quarantined bool `json:"quarantined,omitempty"`
}

// File is the state file of the agent.
type File struct {
	path string

	mu   sync.Mutex
	data Data
	// unwritten reports whether data is newer than the file.
	unwritten bool
}

// Open reads the state. It moves an unreadable file aside: the API also has the quarantine, and
// virtual machines do not depend on the file.
func Open(path string) (*File, error) {
	f := &File{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		if err = json.Unmarshal(data, &f.data); err == nil {
			return f, nil
		}
		f.data = Data{}
	} else if !errors.Is(err, syscall.EISDIR) && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	aside := path + ".garbled"
	klog.ErrorS(err, "Agent state unreadable; file moved aside and new state created", "file", path, "aside", aside)
	if err := os.RemoveAll(aside); err != nil {
		return nil, err
	}
	return f, os.Rename(path, aside)
}

// Get returns a copy of the state.
func (f *File) Get() Data {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.clone()
}

func (d Data) clone() Data {
	d.Erased = slices.Clone(d.Erased)
	if d.Unhealthy != nil {
		u := *d.Unhealthy
		d.Unhealthy = &u
	}
	return d
}

// Change changes the state and writes it. After an error the state is unchanged.
func (f *File) Change(change func(*Data)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.data.clone()
	change(&next)
	if err := contract.WriteJSON(f.path, next); err != nil {
		return err
	}
	f.data, f.unwritten = next, false
	return nil
}

// Erasing remembers the files that are about to be removed, for the next scrub report. On a full
// disk the state is written after files have been removed: see Keep.
func (f *File) Erasing(removed []slots.Removed) {
	var paths []string
	for _, r := range removed {
		paths = append(paths, fmt.Sprintf("slots/%s (%d bytes)", r.Path, r.Bytes))
	}
	f.Remember(paths...)
}

// Remember adds names to the list of erased files.
func (f *File) Remember(paths ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, path := range paths {
		f.data.add(path)
	}
	f.unwritten = true
	if err := f.write(); err != nil {
		klog.ErrorS(err, "Failed to write the list of erased files", "paths", paths)
	}
}

// Keep writes the state if it is unwritten.
func (f *File) Keep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write()
}

func (f *File) write() error {
	if !f.unwritten {
		return nil
	}
	if err := contract.WriteJSON(f.path, f.data); err != nil {
		return err
	}
	f.unwritten = false
	return nil
}

// StartLease starts a new list for a new lease.
func (f *File) StartLease(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data.LeaseUID == uid {
		return
	}
	f.data.LeaseUID, f.data.Erased, f.data.ErasedMore = uid, nil, 0
	f.unwritten = true
	if err := f.write(); err != nil {
		klog.ErrorS(err, "Failed to write the Mac's new lease", "leaseUID", uid)
	}
}

func (d *Data) add(name string) {
	if slices.Contains(d.Erased, name) {
		return // an interrupted erase is repeated
	}
	if len(d.Erased) < MaxErased-1 {
		d.Erased = append(d.Erased, name)
	} else {
		d.ErasedMore++
	}
}

// Report returns the list for a scrub report.
func (d Data) Report() []string {
	list := slices.Clone(d.Erased)
	if d.ErasedMore > 0 {
		list = append(list, fmt.Sprintf("and %d more", d.ErasedMore))
	}
	return list
}
