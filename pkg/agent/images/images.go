// Package images keeps the golden images of a Mac.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/vm/contract"
)

// Image says which image is wanted.
type Image struct {
	// Name is the name of the MacOSImage.
	Name string
	// Reference and Digest are its OCI source.
	Reference string
	Digest    string
	// DiskSize is the size of its disk in bytes.
	DiskSize int64
	// Private: the image needs credentials and leaves the Mac with its tenant.
	Private bool
}

// Cached is an image that the store holds.
type Cached struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Bytes is what it occupies.
	Bytes      int64     `json:"bytes"`
	LastUsedAt time.Time `json:"lastUsedAt"`
	Private    bool      `json:"private,omitempty"`
	// Disk and Aux are the files to clone; Aux may not exist.
	Disk string `json:"-"`
	Aux  string `json:"-"`
}

// Store keeps images.
type Store interface {
	// Ensure returns the image, fetched and verified first if the store does not
	// hold it.
	Ensure(ctx context.Context, image Image) (Cached, error)
	// List returns what the store holds, by name.
	List() ([]Cached, error)
	// Remove removes an image.
	Remove(name string) error
}

// Simulated is a store whose images are sparse files that it makes up.
type Simulated struct {
	Dir   string
	Clock clock.PassiveClock

	mu sync.Mutex
}

const (
	simulatedDiskName = "disk.img"
	simulatedAuxName  = "nvram.bin"
	metadataName      = "image.json"
)

// Ensure implements Store. The content is derived from the digest, so that a VM's
// disk shows which image it was cloned from.
func (s *Simulated) Ensure(ctx context.Context, image Image) (Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkName(image.Name); err != nil {
		return Cached{}, err
	}
	dir := filepath.Join(s.Dir, image.Name)
	held, err := s.read(image.Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Cached{}, err
	}
	if err == nil && held.Digest == image.Digest {
		held.LastUsedAt = s.Clock.Now()
		return held, contract.WriteJSON(filepath.Join(dir, metadataName), held)
	}
	if free, err := disk.Free(s.parent()); err == nil && free < 1<<20 {
		return Cached{}, fmt.Errorf("image %s needs 1 MiB, %d bytes are free", image.Name, free)
	}
	if err := os.RemoveAll(dir); err != nil {
		return Cached{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Cached{}, err
	}
	head := sha256.Sum256([]byte(image.Digest))
	for name, size := range map[string]int64{simulatedDiskName: image.DiskSize, simulatedAuxName: 64 << 10} {
		if err := writeSparse(filepath.Join(dir, name), head[:], size); err != nil {
			return Cached{}, err
		}
	}
	cached := Cached{Name: image.Name, Digest: image.Digest, LastUsedAt: s.Clock.Now(), Private: image.Private}
	cached.Bytes, err = occupied(dir)
	if err != nil {
		return Cached{}, err
	}
	// The metadata goes last: an image without it was never complete.
	if err := contract.WriteJSON(filepath.Join(dir, metadataName), cached); err != nil {
		return Cached{}, err
	}
	return s.read(image.Name)
}

func (s *Simulated) parent() string {
	if _, err := os.Stat(s.Dir); err == nil {
		return s.Dir
	}
	return filepath.Dir(s.Dir)
}

func (s *Simulated) read(name string) (Cached, error) {
	dir := filepath.Join(s.Dir, name)
	data, err := os.ReadFile(filepath.Join(dir, metadataName))
	if err != nil {
		return Cached{}, err
	}
	var c Cached
	if err := json.Unmarshal(data, &c); err != nil {
		return Cached{}, fmt.Errorf("image %s: %w", name, err)
	}
	c.Disk, c.Aux = filepath.Join(dir, simulatedDiskName), filepath.Join(dir, simulatedAuxName)
	return c, nil
}

// List implements Store.
func (s *Simulated) List() ([]Cached, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Cached
	for _, entry := range entries {
		c, err := s.read(entry.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // never complete
		}
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Cached) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Remove implements Store.
func (s *Simulated) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkName(name); err != nil {
		return err
	}
	// Without its metadata the image is incomplete, should this be interrupted.
	if err := contract.RemoveFile(filepath.Join(s.Dir, name, metadataName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Join(s.Dir, name))
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("image name %q is not the name of a MacOSImage", name)
	}
	return nil
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

func occupied(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return 0, err
		}
		sum += disk.Allocated(info)
	}
	return sum, nil
}
