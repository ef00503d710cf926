package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A Store holds files. A file appears only when it is complete.
type Store interface {
	Put(ctx context.Context, name string, content io.Reader) error
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	List(ctx context.Context) ([]string, error)
	Delete(ctx context.Context, name string) error
}

// NewStore returns the store at a location: a folder, or s3://bucket/prefix.
func NewStore(location string, s3 S3) (Store, error) {
	rest, isBucket := strings.CutPrefix(location, "s3://")
	switch {
	case isBucket:
		bucket, prefix, _ := strings.Cut(rest, "/")
		return s3.bucket(bucket, prefix)
	case !filepath.IsAbs(location):
		return nil, fmt.Errorf("%q is no location of backups; use an absolute path, such as /var/backups, or s3://bucket/prefix", location)
	}
	return folder(location), nil
}

// partial is the pattern of files that are being written.
const partial = ".partial-*"

// folder is a Store in a folder that exists.
type folder string

func (f folder) Put(_ context.Context, name string, content io.Reader) (err error) {
	if err := f.removePartial(); err != nil {
		return err
	}
	file, err := os.CreateTemp(string(f), partial)
	if err != nil {
		return err
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(string(f), name)); err != nil {
		return err
	}
	dir, err := os.Open(string(f))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// removePartial removes the files of a writer that was killed, which would fill the volume. The
// writer of another process fails at its end.
func (f folder) removePartial() error {
	names, err := filepath.Glob(filepath.Join(string(f), partial))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

func (f folder) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(f), name))
}

func (f folder) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the folder %q does not exist; create it or mount the volume", string(f))
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

func (f folder) Delete(_ context.Context, name string) error {
	return os.Remove(filepath.Join(string(f), name))
}
