package backup

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A volume that is full, and one that is read-only.
func TestFullVolume(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a file system of 64 KiB: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	store := Directory(dir)
	err := store.Put(t.Context(), "large", io.LimitReader(rand.Reader, 1<<20))
	assert.ErrorContains(t, err, "no space left on device; enlarge the volume")
	require.NoError(t, store.Put(t.Context(), "small", bytes.NewReader([]byte("x"))), "the part has been removed")

	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = store.Put(t.Context(), "small", bytes.NewReader([]byte("x")))
	assert.ErrorContains(t, err, "read-only file system; make "+dir+" writable for user")
}
