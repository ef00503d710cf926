package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// cloneFile makes dst share the blocks of src. It returns errors.ErrUnsupported if the file system
// cannot do so.
func cloneFile(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	err = unix.IoctlFileClone(int(out.Fd()), int(in.Fd()))
	if err == nil {
		return nil
	}
	if rm := os.Remove(dst); rm != nil {
		return rm
	}
	for _, unsupported := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV, unix.EINVAL} {
		if errors.Is(err, unsupported) {
			return fmt.Errorf("FICLONE: %w", errors.ErrUnsupported)
		}
	}
	return err
}
