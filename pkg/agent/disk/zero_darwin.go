package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// punchHole frees the blocks of a range of a file. It returns errors.ErrUnsupported if the file
// system does not support it, or not for ranges that are not aligned to blocks.
func punchHole(f *os.File, offset, size int64) error {
	// fpunchhole_t has the same layout as the start of fstore_t: flags, a reserved word, offset,
	// length.
	err := unix.FcntlFstore(f.Fd(), unix.F_PUNCHHOLE, &unix.Fstore_t{Offset: offset, Length: size})
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("F_PUNCHHOLE: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return &os.PathError{Op: "F_PUNCHHOLE", Path: f.Name(), Err: err}
	}
	return nil
}
