package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// punchHole gives the room of a part of a file back; errors.ErrUnsupported if the
// file system cannot, or not for a part that begins or ends within a block.
func punchHole(f *os.File, offset, size int64) error {
	// fpunchhole_t is as fstore_t begins: flags, a reserved word, offset, length.
	err := unix.FcntlFstore(f.Fd(), unix.F_PUNCHHOLE, &unix.Fstore_t{Offset: offset, Length: size})
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("F_PUNCHHOLE: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return &os.PathError{Op: "F_PUNCHHOLE", Path: f.Name(), Err: err}
	}
	return nil
}
