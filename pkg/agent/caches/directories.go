package caches

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/disk"
)

// MaxFiles bounds the files of a cache that is a directory. The caches of a Mac are bounded by
// their size alone, because their files are in a volume of their own.
const MaxFiles = 1_000_000

// Directories stores caches as directories, for simulated Macs. A file system without quotas cannot
// refuse a write, so a cache that exceeds its limits is emptied before its next use.
type Directories struct {
	// MaxFiles is MaxFiles unless set.
	MaxFiles int
}

// Open implements Disk.
func (d Directories) Open(path string, size int64) (emptied string, err error) {
	used, files, err := d.measure(path)
	if err != nil {
		return "", err
	}
	switch {
	case used > size:
		emptied = fmt.Sprintf("it had %d bytes, and its limit is %d bytes", used, size)
	case files > d.maxFiles():
		emptied = fmt.Sprintf("it had more than %d files", d.maxFiles())
	}
	if emptied != "" {
		klog.InfoS("Cache exceeds its limits; emptied", "path", path, "bytes", used, "size", size, "files", files)
		if err := d.Erase(path); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return emptied, nil
}

// Attached implements Disk. Directories need nothing from the system.
func (Directories) Attached(string) ([]string, error) { return nil, nil }

// Erase implements Disk.
func (d Directories) Erase(path string) error {
	err := os.RemoveAll(path)
	if errors.Is(err, fs.ErrPermission) {
		unlock(path)
		err = os.RemoveAll(path)
	}
	return err
}

// unlock makes the directories below path accessible: a guest may have made one unreadable.
func unlock(path string) {
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if entry == nil || !entry.IsDir() { // also a symbolic link, which Chmod would follow
			return nil
		}
		if err != nil {
			return fs.SkipDir
		}
		return os.Chmod(path, 0o700) // before it is read
	})
}

// Allocated implements Disk.
func (d Directories) Allocated(path string) (int64, error) {
	used, _, err := d.measure(path)
	return used, err
}

func (d Directories) maxFiles() int {
	if d.MaxFiles > 0 {
		return d.MaxFiles
	}
	return MaxFiles
}

// measure returns the storage and the number of files of a cache. It stops at the limit of files.
func (d Directories) measure(path string) (used int64, files int, err error) {
	linked := map[uint64]bool{} // inodes of files with several names
	err = filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			if entry != nil && entry.IsDir() {
				return fs.SkipDir // removed or unreadable
			}
			return nil
		}
		if files++; files > d.maxFiles() {
			return fs.SkipAll
		}
		info, err := entry.Info()
		if err != nil {
			return nil // removed meanwhile
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 && !entry.IsDir() {
			if linked[stat.Ino] {
				return nil
			}
			linked[stat.Ino] = true
		}
		used += disk.Allocated(info)
		return nil
	})
	return used, files, err
}
