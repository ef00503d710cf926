package caches

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// NewDisk returns the disk of this system.
func NewDisk() Disk {
	return &Volumes{Run: run, Mounted: mounted}
}

// pipeTimeout bounds the wait for the output of a killed hdiutil, whose helpers may keep it open.
const pipeTimeout = 5 * time.Second

func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = pipeTimeout
	output, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		output = append(output, exit.Stderr...)
	}
	return output, err
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
