package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"macrack.io/macrack/pkg/vm/faults"
)

// MaxSocketPath is the maximum length of a unix socket path on macOS (sun_path, without its
// terminating zero), in bytes.
const MaxSocketPath = 103

// ErrLocked means that another process owns the slot.
var ErrLocked = errors.New("slot is locked by another process")

// ErrGarbled means that a file has invalid content. WriteJSON never produces such a file: another
// program has changed it, or the disk is failing.
var ErrGarbled = errors.New("the file is garbled")

// SlotDir is the path of a slot's directory.
type SlotDir string

func (d SlotDir) path(name string) string { return filepath.Join(string(d), name) }

// SpecPath is the file with the spec of the VM to run.
func (d SlotDir) SpecPath() string { return d.path("spec.json") }

// LockPath is the file whose flock represents the ownership of the slot.
func (d SlotDir) LockPath() string { return d.path("lock") }

// StartedPath is the file that the runner writes first.
func (d SlotDir) StartedPath() string { return d.path("started.json") }

// ResultPath is the file that the runner writes last.
func (d SlotDir) ResultPath() string { return d.path("result.json") }

// SocketPath is the socket of the runner's API.
func (d SlotDir) SocketPath() string { return d.path("vm.sock") }

// DiskDir holds the VM's disk and auxiliary storage.
func (d SlotDir) DiskDir() string { return d.path("disk") }

// DiskPath is the VM's disk.
func (d SlotDir) DiskPath() string { return filepath.Join(d.DiskDir(), "disk.img") }

// AuxPath is the VM's auxiliary storage (NVRAM).
func (d SlotDir) AuxPath() string { return filepath.Join(d.DiskDir(), "nvram.bin") }

// ConsolePath is the guest's console log.
func (d SlotDir) ConsolePath() string { return d.path("console.log") }

// ReadSpec reads spec.json. It returns nil and no error if the file does not exist.
func (d SlotDir) ReadSpec() (*Spec, error) { return readJSON[Spec](d.SpecPath()) }

// ReadStarted reads started.json. It returns nil and no error if the file does not exist.
func (d SlotDir) ReadStarted() (*Started, error) { return readJSON[Started](d.StartedPath()) }

// ReadResult reads result.json. It returns nil and no error if the file does not exist.
func (d SlotDir) ReadResult() (*Result, error) { return readJSON[Result](d.ResultPath()) }

func readJSON[T any](path string) (*T, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, syscall.EISDIR) || errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: %w", ErrGarbled, err)
	}
	if err != nil {
		return nil, err
	}
	var v *T
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrGarbled, path, err)
	}
	if v == nil {
		return nil, fmt.Errorf("%w: %s: null", ErrGarbled, path)
	}
	return v, nil
}

// WriteJSON writes v to path atomically: after a crash or a power loss, the file holds either all
// of its old or all of its new content.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'))
}

// WriteFile is like WriteJSON, for bytes. The file has mode 0600.
func WriteFile(path string, data []byte) (err error) {
	place := "write " + filepath.Base(path)
	if err := faults.Write(path); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()
			_ = os.Remove(tmp.Name())
		}
	}()
	faults.At(place + ": created")
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	faults.At(place + ": synced")
	faults.Undoable(path)
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	faults.At(place + ": renamed")
	err = SyncDir(filepath.Dir(path))
	faults.At(place + ": done")
	return err
}

// RemoveFile durably removes path, if it exists.
func RemoveFile(path string) error {
	faults.At("remove " + filepath.Base(path))
	faults.Undoable(path)
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	faults.At("remove " + filepath.Base(path) + ": removed")
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	faults.Durable(dir)
	return nil
}

// Lock is the ownership of a slot. The kernel releases it when the process ends.
type Lock struct{ file *os.File }

// TryLock takes the slot, or returns ErrLocked at once if another process owns it.
func (d SlotDir) TryLock() (*Lock, error) { return TryLockFile(d.LockPath()) }

// TryLockFile takes the exclusive flock of the file at path, which it creates if
// needed, or returns ErrLocked at once.
func TryLockFile(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("flock %s: %w", path, err)
	}
	return &Lock{file: f}, nil
}

// Unlock releases the slot. It may be called more than once.
func (l *Lock) Unlock() { _ = l.file.Close() }
