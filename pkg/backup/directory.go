package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// partPattern matches the files that are being written.
const partPattern = ".macrack-*.part"

// stalePart is the age of a file that a killed process has left.
const stalePart = 24 * time.Hour

// A Directory is a Store in a directory, such as a mounted volume.
type Directory string

// List returns the names of the files.
func (d Directory) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, d.explain(err)
	}
	var found []string
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			found = append(found, entry.Name())
		}
	}
	return found, nil
}

// Put writes a file, syncs it to the disk, and then gives it its name.
func (d Directory) Put(_ context.Context, name string, content io.Reader) (err error) {
	file, err := os.CreateTemp(string(d), partPattern)
	if err != nil {
		return d.explain(err)
	}
	defer func() {
		if err != nil {
			err = d.explain(err)
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	d.removeStaleParts(file)
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), d.path(name)); err != nil {
		return err
	}
	directory, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer directory.Close()
	return directory.Sync()
}

// removeStaleParts removes the parts that are much older than a new one.
func (d Directory) removeStaleParts(newest *os.File) {
	limit, err := newest.Stat()
	if err != nil {
		return
	}
	parts, _ := filepath.Glob(d.path(partPattern))
	for _, part := range parts {
		if info, err := os.Stat(part); err == nil && info.ModTime().Before(limit.ModTime().Add(-stalePart)) {
			_ = os.Remove(part)
		}
	}
}

// Get opens a file.
func (d Directory) Get(_ context.Context, name string) (io.ReadCloser, error) {
	file, err := os.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Delete removes a file.
func (d Directory) Delete(_ context.Context, name string) error {
	return os.Remove(d.path(name))
}

func (d Directory) path(name string) string { return filepath.Join(string(d), name) }

// explain adds the remedy to an error.
func (d Directory) explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w; enlarge the volume of %s, or keep fewer snapshots", err, d)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w; make %s writable for user %d", err, d, os.Getuid())
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w; mount the volume at %s, or correct --directory", err, d)
	}
	return err
}
