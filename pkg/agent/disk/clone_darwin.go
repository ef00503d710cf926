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
	err := unix.Clonefile(src, dst, unix.CLONE_NOFOLLOW)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("clonefile: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return &os.LinkError{Op: "clonefile", Old: src, New: dst, Err: err}
	}
	return os.Chmod(dst, 0o600)
}
