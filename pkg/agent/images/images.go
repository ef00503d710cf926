// Package images stores the golden images of a Mac: it pulls them from registries, verifies them,
// and evicts unused ones. See docs/images.md.
package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/vm/contract"
)

// Image identifies an image.
type Image struct {
	// Name is the name of the MacOSImage.
	Name string
	// Reference and Digest are its OCI source.
	Reference string
	Digest    string
	// DiskSize is the size of its disk in bytes.
	DiskSize int64
	// HardwareModel is that of the MacOSImage, in base64; empty if the MacOSImage leaves it to the
	// image.
	HardwareModel string
	// Private means that the image is pulled with the tenant's credentials and removed after the
	// tenant's lease.
	Private bool
}

// Needs are the requirements of a pull.
type Needs struct {
	// Credentials returns the registry credentials in the format of a Secret of type
	// kubernetes.io/dockerconfigjson; nil for anonymous pulls. It is called only for a pull.
	Credentials func(context.Context) ([]byte, error)
	// MinimumFree is the storage to keep free, in bytes.
	MinimumFree int64
	// Caches is the storage that the caches of the lease may still take, in bytes.
	Caches int64
	// Keep returns the names of the images that must not be evicted; may be nil. It is called only
	// before an eviction.
	Keep func() ([]string, error)
	// OnEvent receives events; may be nil.
	OnEvent func(Event)
}

// Reasons of events.
const (
	// EventPulling: the pull has started.
	EventPulling = "Pulling"
	// EventPulled: the pull is complete.
	EventPulled = "Pulled"
	// EventEvicted: another image was removed to make room.
	EventEvicted = "Evicted"
)

// Event is a Kubernetes event to publish.
type Event struct {
	Reason  string
	Message string
}

// Cached is an image in the store.
type Cached struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Bytes is the allocated storage.
	Bytes      int64     `json:"bytes"`
	LastUsedAt time.Time `json:"lastUsedAt"`
	Private    bool      `json:"private,omitempty"`
	// DiskSize is the size of the disk in bytes.
	DiskSize int64 `json:"diskSize,omitempty"`
	// HardwareModel is that of the virtual machine that the image was made from, in base64; empty
	// if unknown.
	HardwareModel string `json:"hardwareModel,omitempty"`
	// MachineID is the machine identifier of that virtual machine, in base64; empty if unknown.
	MachineID string `json:"machineIdentifier,omitempty"`
	// CPUMin and MemoryMin are the least that the image boots with, in cores and bytes; 0 if
	// unknown.
	CPUMin    int64 `json:"cpuMin,omitempty"`
	MemoryMin int64 `json:"memoryMin,omitempty"`
	// Disk and Aux are the files to clone.
	Disk string `json:"-"`
	Aux  string `json:"-"`
}

// Progress is the progress of a pull, in bytes to download.
type Progress struct {
	Done, Total int64
}

// String returns for example "42% (1.2 GiB of 2.9 GiB)".
func (p Progress) String() string {
	if p.Total == 0 {
		return "asking the registry"
	}
	return fmt.Sprintf("%d%% (%s of %s)", 100*p.Done/p.Total, Size(p.Done), Size(p.Total))
}

// Size formats a number of bytes, such as "1.2 GiB".
func Size(bytes int64) string {
	const unit = 1 << 10
	if bytes < unit {
		return fmt.Sprintf("%d bytes", bytes)
	}
	value, units := float64(bytes)/unit, "KMGTP"
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, units[0])
}

// Store stores images. Its methods are safe for concurrent use.
type Store interface {
	// Ensure returns the image, after a pull if the store does not have it. A *NoRoomError means
	// that the disk is too full.
	Ensure(ctx context.Context, image Image, needs Needs) (Cached, error)
	// Check verifies an image's manifest and config in its registry. It does not depend on the
	// store's content. verify.Reason classifies its errors.
	Check(ctx context.Context, image Image, needs Needs) error
	// List returns the complete images, by name.
	List() ([]Cached, error)
	// Unfinished returns the remains of pulls and removals that are in progress or were
	// interrupted. Remains of unknown origin count as private.
	Unfinished() ([]Cached, error)
	// Progress returns the progress of the image's pull, if one is in progress.
	Progress(name string) (Progress, bool)
	// Remove cancels the pull of an image and removes the image.
	Remove(name string) error
}

// Names of files in the directory of an image. The metadata is written last: without it, or without
// the disk, the image is incomplete.
const (
	diskName     = "disk.img"
	auxName      = "nvram.bin"
	metadataName = "image.json"
	journalName  = "pull.json"
)

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("invalid image name %q; use the name of a MacOSImage", name)
	}
	return nil
}

// read returns a complete image, or fs.ErrNotExist.
func read(dir, name string) (Cached, error) {
	c := Cached{Disk: filepath.Join(dir, name, diskName), Aux: filepath.Join(dir, name, auxName)}
	path := filepath.Join(dir, name, metadataName)
	data, err := os.ReadFile(path)
	if err != nil {
		return Cached{}, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		// Unreadable metadata counts as missing.
		return Cached{}, fmt.Errorf("%s: %w: %w", path, fs.ErrNotExist, err)
	}
	info, err := os.Stat(c.Disk)
	if err != nil {
		return Cached{}, err
	}
	if c.DiskSize != 0 && info.Size() != c.DiskSize {
		return Cached{}, fmt.Errorf("%s has %d bytes, the image has %d: %w", c.Disk, info.Size(), c.DiskSize, fs.ErrNotExist)
	}
	return c, nil
}

// list returns the complete images of a directory, by name.
func list(dir string) ([]Cached, error) {
	names, err := names(dir)
	var all []Cached
	for _, name := range names {
		c, err := read(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, err
}

// names returns the names of the directories of images, in order.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, entry := range entries {
		if entry.IsDir() {
			all = append(all, entry.Name())
		}
	}
	slices.Sort(all)
	return all, err
}

// occupied returns the bytes that the files of a directory occupy.
func occupied(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += disk.Allocated(info)
	}
	return sum, nil
}

// remove removes an image, complete or not. An interrupted removal leaves an incomplete image that
// unfinished still reports.
func remove(dir, name string) error {
	return removeInOrder(filepath.Join(dir, name), contract.RemoveFile)
}

// removeInOrder removes the disk first, because an image without a disk is incomplete. It removes
// the files that mark the image as private last.
func removeInOrder(path string, removeFile func(path string) error) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rank := func(entry fs.DirEntry) int {
		switch entry.Name() {
		case diskName:
			return 0
		case metadataName, journalName:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(rank(a), rank(b)) })
	for _, entry := range entries {
		if entry.IsDir() {
			continue // not an image
		}
		if err := removeFile(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// unfinished returns the incomplete images of a directory, by name.
func unfinished(dir string) ([]Cached, error) {
	names, err := names(dir)
	if err != nil {
		return nil, err
	}
	var all []Cached
	for _, name := range names {
		if _, err := read(dir, name); err == nil {
			continue
		}
		c := Cached{Name: name}
		c.Digest, c.Private = remains(filepath.Join(dir, name))
		if c.Bytes, err = occupied(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			continue // removed in between
		} else if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// remains returns the digest of the image whose remains a directory holds, and whether it is
// private. It counts as private unless all readable files show that it is not.
func remains(path string) (digest string, private bool) {
	known := false
	for _, name := range []string{metadataName, journalName} {
		data, err := os.ReadFile(filepath.Join(path, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var said struct {
			Digest  string `json:"digest"`
			Private bool   `json:"private"`
		}
		if err == nil {
			err = json.Unmarshal(data, &said)
		}
		known = known || err == nil
		digest = cmp.Or(said.Digest, digest)
		private = private || said.Private || err != nil
	}
	return digest, private || !known
}
