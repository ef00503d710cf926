package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/disk"
)

const (
	// imageSuffix is the suffix of the disk image of a volume. hdiutil requires it.
	imageSuffix = ".sparseimage"
	// newSuffix marks a disk image that is being created.
	newSuffix = ".new" + imageSuffix
	mebibyte  = 1 << 20
)

// Volumes stores caches as APFS volumes in sparse disk images, for Macs. A full volume refuses
// writes, so a cache takes no more storage than its size. To erase a volume is to remove one file,
// however many files are in it. hdiutil needs no root.
type Volumes struct {
	// Run runs a command and returns its output.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// Mounted reports whether a volume is mounted at the path.
	Mounted func(path string) (bool, error)
}

// cacheName returns the name of the cache that a directory entry belongs to.
func cacheName(entry string) string {
	return strings.TrimSuffix(strings.TrimSuffix(entry, newSuffix), imageSuffix)
}

// Open implements Disk. It never empties a cache. A volume that macOS does not mount may be busy
// rather than damaged, and only its owner can decide that the content may be lost.
func (v *Volumes) Open(path string, size int64) (emptied string, err error) {
	mounted, err := v.mounted(path)
	if err != nil {
		return "", err
	}
	if !mounted {
		if err := v.mount(path, size); err != nil {
			return "", err
		}
	}
	hideFromSpotlight(path)
	return "", nil
}

// mount mounts the volume at path, and creates a missing one.
func (v *Volumes) mount(path string, size int64) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	image := path + imageSuffix
	if _, err := os.Lstat(image); errors.Is(err, fs.ErrNotExist) {
		if err := v.create(path, size); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	// An interrupted mount leaves the image attached, and then it is busy.
	if err := v.detach(image); err != nil {
		return err
	}
	if _, err := v.hdiutil("attach", image, "-mountpoint", path, "-nobrowse", "-noautoopen", "-owners", "off"); err != nil {
		return fmt.Errorf("failed to mount the volume, whose content is kept; create another lease if this persists: %w", err)
	}
	return nil
}

// create creates the disk image. An interruption leaves no incomplete image of that name.
func (v *Volumes) create(path string, size int64) error {
	created := path + newSuffix
	if err := v.detach(created); err != nil {
		return err
	}
	if err := os.Remove(created); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := v.hdiutil("create", "-size", fmt.Sprintf("%dm", size/mebibyte), "-type", "SPARSE", "-fs", "APFS", "-volname", filepath.Base(path), created); err != nil {
		return err
	}
	return os.Rename(created, path+imageSuffix)
}

// hideFromSpotlight keeps Spotlight from reading the files of a guest. A guest cannot change the
// root of the volume.
func hideFromSpotlight(path string) {
	file := filepath.Join(path, ".metadata_never_index")
	if _, err := os.Lstat(file); err == nil {
		return
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		klog.ErrorS(err, "Failed to exclude the volume of a cache from Spotlight; a full volume needs no index", "path", path)
	}
}

// Erase implements Disk. The file of an attached image would keep its storage, so the image is
// detached first.
func (v *Volumes) Erase(path string) error {
	images := []string{path + newSuffix, path + imageSuffix}
	if err := v.detach(images...); err != nil {
		return err
	}
	if mounted, err := v.mounted(path); err != nil {
		return err
	} else if mounted { // hdiutil knows the image by another path
		if _, err := v.hdiutil("detach", path, "-force"); err != nil {
			return err
		}
	}
	for _, name := range append(images, path) {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// mounted reports whether a volume is mounted at the path, which may not exist.
func (v *Volumes) mounted(path string) (bool, error) {
	mounted, err := v.Mounted(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// Allocated implements Disk.
func (v *Volumes) Allocated(path string) (int64, error) {
	info, err := os.Lstat(path + imageSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return disk.Allocated(info), nil
}
