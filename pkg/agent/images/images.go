// Package images keeps the golden images of a Mac: it fetches them from registries, verifies them, and makes room
// for them. docs/images.md says how.
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

// Image says which image is wanted.
type Image struct {
	// Name is the name of the MacOSImage.
	Name string
	// Reference and Digest are its OCI source.
	Reference string
	Digest    string
	// DiskSize is the size of its disk in bytes.
	DiskSize int64
	// HardwareModel is the one that the MacOSImage says, in base64; empty if it leaves that to the image.
	HardwareModel string
	// Private: the image was fetched with the tenant's own credentials, and leaves the
	// Mac with its tenant.
	Private bool
}

// Needs is what a store may need to fetch an image.
type Needs struct {
	// Credentials returns those for the registry as a Secret of type
	// kubernetes.io/dockerconfigjson has them; nil for none. It is asked only if the
	// image has to be fetched.
	Credentials func(context.Context) ([]byte, error)
	// MinimumFree is how many bytes of the disk are kept free.
	MinimumFree int64
	// Keep returns the names of the images that may not be evicted; nil for none. It is
	// asked when room has to be made.
	Keep func() ([]string, error)
	// OnEvent is told what happens; nil if nobody wants to know.
	OnEvent func(Event)
}

// Reasons of events.
const (
	// EventPulling: the image is being fetched.
	EventPulling = "Pulling"
	// EventPulled: the image is there.
	EventPulled = "Pulled"
	// EventEvicted: another image was removed to make room.
	EventEvicted = "Evicted"
)

// Event is something that people want to know.
type Event struct {
	Reason  string
	Message string
}

// Cached is an image that the store holds.
type Cached struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Bytes is what it occupies.
	Bytes      int64     `json:"bytes"`
	LastUsedAt time.Time `json:"lastUsedAt"`
	Private    bool      `json:"private,omitempty"`
	// DiskSize is the size of the disk in bytes.
	DiskSize int64 `json:"diskSize,omitempty"`
	// HardwareModel is the one that the image was made for, in base64; empty if it does
	// not say.
	HardwareModel string `json:"hardwareModel,omitempty"`
	// Disk and Aux are the files to clone; Aux may not exist.
	Disk string `json:"-"`
	Aux  string `json:"-"`
}

// Progress is how far a pull is, in bytes to download.
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

// Size writes bytes for people, such as "1.2 GiB".
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

// Store keeps images. Its methods may be called at the same time.
type Store interface {
	// Ensure returns the image, fetched and verified first if the store does not hold
	// it. A *NoRoomError means that the disk is too full.
	Ensure(ctx context.Context, image Image, needs Needs) (Cached, error)
	// Check verifies an image in its registry, as its manifest and its config describe it. verify.Reason says what kind of error
	// it returns. Whether the store holds the image does not matter.
	Check(ctx context.Context, image Image, needs Needs) error
	// List returns what the store holds now, by name. An image that is not complete is
	// not held.
	List() ([]Cached, error)
	// Unfinished returns what pulls that are going on, and pulls and removals that were
	// interrupted, have left. Of what cannot be told whose it is counts as private.
	Unfinished() ([]Cached, error)
	// Progress returns how far the pull of an image is, if there is one.
	Progress(name string) (Progress, bool)
	// Remove ends the pull of an image, if there is one, and removes the image.
	Remove(name string) error
}

// Names of files in the directory of an image. The metadata is written last: without
// it, or the disk, the image is not complete.
const (
	diskName     = "disk.img"
	auxName      = "nvram.bin"
	metadataName = "image.json"
	journalName  = "pull.json"
)

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("image name %q is not the name of a MacOSImage", name)
	}
	return nil
}

// read returns a complete image; fs.ErrNotExist if there is none.
func read(dir, name string) (Cached, error) {
	c := Cached{Disk: filepath.Join(dir, name, diskName), Aux: filepath.Join(dir, name, auxName)}
	path := filepath.Join(dir, name, metadataName)
	data, err := os.ReadFile(path)
	if err != nil {
		return Cached{}, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		// Metadata that cannot be read is as good as none.
		return Cached{}, fmt.Errorf("%s: %w: %w", path, fs.ErrNotExist, err)
	}
	info, err := os.Stat(c.Disk)
	if err != nil {
		return Cached{}, err
	}
	if c.DiskSize != 0 && info.Size() != c.DiskSize {
		return Cached{}, fmt.Errorf("%s has %d bytes, the image %d: %w", c.Disk, info.Size(), c.DiskSize, fs.ErrNotExist)
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

// occupied returns how many bytes the files of a directory take.
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

// remove removes an image, complete or not. Interrupted, it leaves an image that is not complete, and of which
// unfinished tells whose it is as long as anything is left.
func remove(dir, name string) error {
	return removeInOrder(filepath.Join(dir, name), contract.RemoveFile)
}

// removeInOrder removes the disk first, as the image is not complete without, and last what says whether the image is
// private.
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
			continue // none of ours
		}
		if err := removeFile(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// unfinished returns the images of a directory that are not complete, by name.
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
			continue // it was removed just now
		} else if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// remains returns of which image a directory has remains, and whether that is private: it is unless all that can be
// read says that it is not.
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
