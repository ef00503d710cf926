package witness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
)

// stored is the witness of the Mac with a serial number.
type stored struct {
	SerialNumber string `json:"serialNumber"`
	rackv1alpha1.MacNodeWitness
}

// File is the witness on the disk of the Mac. After a loss of etcd, it may be the only copy of a
// lease.
type File struct {
	path string

	mu   sync.Mutex
	kept *stored // nil if the Mac has seen nothing
}

// Open reads the witness. An unreadable file is an error: without the witness, the agent could not
// tell a server that has lost history from others.
func Open(path string) (*File, error) {
	f := &File{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f.kept)
	}
	if err != nil {
		return nil, fmt.Errorf("the witness of the Mac cannot be read; if etcd has lost no history, delete %s: %w", path, err)
	}
	return f, nil
}

// get returns a copy of the witness; nil without one.
func (f *File) get() *stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept.clone()
}

func (s *stored) clone() *stored {
	if s == nil {
		return nil
	}
	return &stored{s.SerialNumber, *s.DeepCopy()}
}

// change replaces the witness by the result of next, which gets the current one. It writes nothing
// if next returns nil. Nothing else changes the witness meanwhile.
func (f *File) change(next func(kept *stored) (*stored, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, err := next(f.kept.clone())
	if err != nil || changed == nil {
		return err
	}
	faults.At("witness: before")
	if err := contract.WriteJSON(f.path, changed); err != nil {
		return err
	}
	f.kept = changed.clone()
	faults.At("witness: after")
	return nil
}
