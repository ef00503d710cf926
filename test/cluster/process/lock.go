package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"macrack.io/macrack/test/cluster/await"
)

// Lock locks a file, and waits while another process holds the lock. The system releases the
// lock of a process that dies.
func Lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	said := false
	err = await.Poll(ctx, func(context.Context) (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			if !said {
				owner, _ := io.ReadAll(io.NewSectionReader(f, 0, 64))
				fmt.Fprintf(progress, "waiting for process %s, which does the same work\n", strings.TrimSpace(string(owner)))
				said = true
			}
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	return func() { f.Close() }, nil
}
