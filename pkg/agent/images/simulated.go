package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/vm/contract"
)

// Simulated is a store of generated sparse images. It allows many Macs in one process, without a
// registry.
type Simulated struct {
	Dir   string
	Clock clock.PassiveClock

	mu sync.Mutex
}

// Ensure implements Store. The content is derived from the digest, so that a VM's
// disk shows which image it was cloned from.
func (s *Simulated) Ensure(_ context.Context, image Image, _ Needs) (Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkName(image.Name); err != nil {
		return Cached{}, err
	}
	dir := filepath.Join(s.Dir, image.Name)
	held, err := read(s.Dir, image.Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Cached{}, err
	}
	if err == nil && held.Digest == image.Digest {
		held.LastUsedAt = s.Clock.Now()
		return held, contract.WriteJSON(filepath.Join(dir, metadataName), held)
	}
	if free, err := disk.Free(s.parent()); err == nil && free < 1<<20 {
		return Cached{}, fmt.Errorf("image %s needs 1 MiB, and %d bytes are free", image.Name, free)
	}
	if err := remove(s.Dir, image.Name); err != nil {
		return Cached{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Cached{}, err
	}
	head := sha256.Sum256([]byte(image.Digest))
	for name, size := range map[string]int64{diskName: image.DiskSize, auxName: 64 << 10} {
		if err := writeSparse(filepath.Join(dir, name), head[:], size); err != nil {
			return Cached{}, err
		}
	}
	cached := Cached{Name: image.Name, Digest: image.Digest, LastUsedAt: s.Clock.Now(), Private: image.Private}
	cached.Bytes, err = occupied(dir)
	if err != nil {
		return Cached{}, err
	}
	// The metadata is written last: an image without it is incomplete.
	if err := contract.WriteJSON(filepath.Join(dir, metadataName), cached); err != nil {
		return Cached{}, err
	}
	return read(s.Dir, image.Name)
}

// Check implements Store. Without a registry, every image matches its MacOSImage.
func (s *Simulated) Check(context.Context, Image, Needs) error { return nil }

func (s *Simulated) parent() string {
	if _, err := os.Stat(s.Dir); err == nil {
		return s.Dir
	}
	return filepath.Dir(s.Dir)
}

// List implements Store.
func (s *Simulated) List() ([]Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return list(s.Dir)
}

// Unfinished implements Store.
func (s *Simulated) Unfinished() ([]Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return unfinished(s.Dir)
}

// Progress implements Store.
func (s *Simulated) Progress(string) (Progress, bool) { return Progress{}, false }

// Remove implements Store.
func (s *Simulated) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkName(name); err != nil {
		return err
	}
	return remove(s.Dir, name)
}

func writeSparse(path string, head []byte, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(head); err != nil {
		return err
	}
	if err := f.Truncate(max(size, int64(len(head)))); err != nil {
		return err
	}
	return f.Sync()
}
