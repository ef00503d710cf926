package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/disk"
)

const (
	hdiutil = "/usr/bin/hdiutil"
	// hdiutilTimeout bounds one call of hdiutil.
	hdiutilTimeout = 2 * time.Minute
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

// Open implements Disk. A volume that macOS does not mount is replaced by an empty one.
func (v *Volumes) Open(path string, size int64) error {
	mounted, err := v.Mounted(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if mounted {
		return nil
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	image := path + imageSuffix
	if _, err := os.Lstat(image); err == nil {
		err := v.attach(path)
		if err == nil {
			return nil
		}
		klog.ErrorS(err, "Failed to mount the volume of a cache; replaced by an empty one", "image", image)
		if err := os.Remove(image); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := v.create(path, size); err != nil {
		return err
	}
	if err := v.attach(path); err != nil {
		return err
	}
	// Spotlight reads no file of a guest. No guest has seen this volume yet.
	return os.WriteFile(filepath.Join(path, ".metadata_never_index"), nil, 0o600)
}

// create creates the disk image. An interruption leaves no incomplete image of that name.
func (v *Volumes) create(path string, size int64) error {
	created := path + newSuffix
	if err := os.Remove(created); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := v.hdiutil("create", "-size", fmt.Sprintf("%dm", size/mebibyte), "-type", "SPARSE", "-fs", "APFS", "-volname", filepath.Base(path), created); err != nil {
		return err
	}
	return os.Rename(created, path+imageSuffix)
}

func (v *Volumes) attach(path string) error {
	return v.hdiutil("attach", path+imageSuffix, "-mountpoint", path, "-nobrowse", "-noautoopen", "-owners", "off")
}

// Erase implements Disk.
func (v *Volumes) Erase(path string) error {
	mounted, err := v.Mounted(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if mounted {
		if err := v.hdiutil("detach", path, "-force"); err != nil {
			return err
		}
	}
	for _, name := range []string{path + newSuffix, path + imageSuffix, path} {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
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

func (v *Volumes) hdiutil(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), hdiutilTimeout)
	defer cancel()
	output, err := v.Run(ctx, hdiutil, args...)
	if err != nil {
		return fmt.Errorf("hdiutil %s: %w: %s", args[0], err, strings.TrimSpace(string(output)))
	}
	return nil
}
