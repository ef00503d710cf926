// Package disk clones and grows the disks of virtual machines.
package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Method is the way in which a file was cloned.
type Method string

const (
	// CopyOnWrite: the file system shares the blocks (clonefile, FICLONE).
	CopyOnWrite Method = "CopyOnWrite"
	// SparseCopy: the data was copied and the holes were kept.
	SparseCopy Method = "SparseCopy"
)

// Clone clones src to dst, which must not exist, and grows dst to size bytes if it is smaller. It
// returns once dst is durable. On failure it removes dst.
func Clone(src, dst string, size int64) (method Method, err error) {
	defer func() {
		if err != nil && !errors.Is(err, os.ErrExist) {
			_ = os.Remove(dst)
		}
	}()
	method = CopyOnWrite
	if err := cloneFile(src, dst); err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			return "", err
		}
		method = SparseCopy
		if err := sparseCopy(src, dst); err != nil {
			return "", err
		}
	}
	f, err := os.OpenFile(dst, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() > size && size > 0 {
		return "", fmt.Errorf("image disk has %d bytes, and the class allows %d; use a class with more storage", info.Size(), size)
	}
	if info.Size() < size {
		if err := f.Truncate(size); err != nil {
			return "", err
		}
	}
	return method, f.Sync()
}

// sparseCopy copies the data of src and keeps its holes.
func sparseCopy(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	return EachExtent(in, 0, info.Size(), func(start, end int64) error {
		_, err := io.Copy(io.NewOffsetWriter(out, start), io.NewSectionReader(in, start, end-start))
		return err
	})
}

// trustHoles reports whether the file system reports holes only where there is no data. APFS may
// report data that is not flushed yet as a hole (coreutils, pull request 68).
var trustHoles = runtime.GOOS != "darwin"

// EachExtent calls do for each extent of data in a file between offset and end. The rest of the
// range is holes. On macOS, the whole range counts as data.
func EachExtent(f *os.File, offset, end int64, do func(start, end int64) error) error {
	if !trustHoles {
		if offset < end {
			return do(offset, end)
		}
		return nil
	}
	for offset < end {
		start, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || (err == nil && start >= end) {
			return nil // only a hole remains
		}
		if err != nil {
			return fmt.Errorf("find data in %s: %w", filepath.Base(f.Name()), err)
		}
		if offset, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("find the end of data in %s: %w", filepath.Base(f.Name()), err)
		}
		if err := do(start, min(offset, end)); err != nil {
			return err
		}
	}
	return nil
}

// Zero writes zeros to size bytes of a file from offset on. It frees their blocks where the file
// system supports it.
func Zero(f *os.File, offset, size int64) error {
	err := punchHole(f, offset, size)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return writeZeros(f, offset, size)
}

// writeZeros writes zeros to the data in a range of a file.
func writeZeros(f *os.File, offset, size int64) error {
	zeros := make([]byte, 1<<20)
	return EachExtent(f, offset, offset+size, func(start, end int64) error {
		for at := start; at < end; at += int64(len(zeros)) {
			if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), end-at)], at); err != nil {
				return err
			}
		}
		return nil
	})
}

// Allocated returns the bytes that a file occupies, which for a sparse file is less than its size.
func Allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}

// Free returns the bytes that this user can still write to the file system of path.
func Free(path string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // the types differ between systems
}

// Size returns the size of the file system of path, in bytes.
func Size(path string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, err
	}
	return int64(s.Blocks) * int64(s.Bsize), nil //nolint:unconvert // the types differ between systems
}
