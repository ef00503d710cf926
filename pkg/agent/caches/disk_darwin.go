package caches

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// NewDisk returns the disk of this system.
func NewDisk() Disk {
	return &Volumes{Run: run, Mounted: mounted}
}

func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, name, args...).CombinedOutput()
}

// mounted reports whether path is on another file system than its parent.
func mounted(path string) (bool, error) {
	var here, parent syscall.Stat_t
	if err := syscall.Lstat(path, &here); err != nil {
		return false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if err := syscall.Lstat(filepath.Dir(path), &parent); err != nil {
		return false, &os.PathError{Op: "lstat", Path: filepath.Dir(path), Err: err}
	}
	return here.Dev != parent.Dev, nil
}
