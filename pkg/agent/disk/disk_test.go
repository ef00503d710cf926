package disk

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func makeSparse(t *testing.T, size int64, data map[int64]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "src.img")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	for offset, text := range data {
		_, err := f.WriteAt([]byte(text), offset)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	return path
}

func TestCloneKeepsDataAndHolesAndGrows(t *testing.T) {
	data := map[int64]string{0: "first", 1 << 20: "middle", 8<<20 - 4: "last"}
	src := makeSparse(t, 8<<20, data)
	for name, clone := range map[string]func(dst string) error{
		"clone":       func(dst string) error { _, err := Clone(src, dst, 16<<20); return err },
		"sparse copy": func(dst string) error { return sparseCopy(src, dst) },
	} {
		t.Run(name, func(t *testing.T) {
			dst := filepath.Join(t.TempDir(), "dst.img")
			require.NoError(t, clone(dst))
			want, err := os.ReadFile(src)
			require.NoError(t, err)
			got, err := os.ReadFile(dst)
			require.NoError(t, err)
			assert.Equal(t, want, got[:len(want)])
			info, err := os.Stat(dst)
			require.NoError(t, err)
			assert.Less(t, Allocated(info), int64(1<<20), "holes must stay holes")
			assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			if name == "clone" {
				assert.EqualValues(t, 16<<20, info.Size())
			}
		})
	}
}

func TestCloneRefusesTooLargeDisk(t *testing.T) {
	src := makeSparse(t, 4<<20, nil)
	dst := filepath.Join(t.TempDir(), "dst.img")
	_, err := Clone(src, dst, 1<<20)
	require.ErrorContains(t, err, "image disk has 4194304 bytes, and the class allows 1048576")
	assert.NoFileExists(t, dst, "a failed clone leaves nothing behind")

	require.NoError(t, os.WriteFile(dst, []byte("precious"), 0o600))
	_, err = Clone(src, dst, 8<<20)
	require.ErrorIs(t, err, os.ErrExist)
	content, err := os.ReadFile(dst)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(content), "an existing disk is never overwritten")
}

func TestZero(t *testing.T) {
	src := makeSparse(t, 8<<20, map[int64]string{1 << 20: "before", 3 << 20: "inside", 5 << 20: "after"})
	f, err := os.OpenFile(src, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, Zero(f, 2<<20, 2<<20))
	content, err := os.ReadFile(src)
	require.NoError(t, err)
	assert.Len(t, content, 8<<20)
	assert.Equal(t, make([]byte, 2<<20), content[2<<20:4<<20])
	assert.Equal(t, "before", string(content[1<<20:1<<20+6]))
	assert.Equal(t, "after", string(content[5<<20:5<<20+5]))
}

// On macOS, a hole may contain data.
func TestHolesAreNotTrustedOnMacOS(t *testing.T) {
	trustHoles = false
	t.Cleanup(func() { trustHoles = runtime.GOOS != "darwin" })
	src := makeSparse(t, 4<<20, nil)
	f, err := os.OpenFile(src, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, writeZeros(f, 1<<20, 2<<20))
	info, err := f.Stat()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, Allocated(info), int64(2<<20), "zeros are written to the whole range")
	require.NoError(t, EachExtent(f, 2, 2, func(int64, int64) error { return errors.New("an empty range") }))
}

func TestEachExtentLeavesHolesOut(t *testing.T) {
	src := makeSparse(t, 64<<20, map[int64]string{8 << 20: "one", 40 << 20: "two"})
	f, err := os.Open(src)
	require.NoError(t, err)
	defer f.Close()
	var found []int64
	total := int64(0)
	require.NoError(t, EachExtent(f, 0, 64<<20, func(start, end int64) error {
		found, total = append(found, start), total+end-start
		return nil
	}))
	assert.Equal(t, []int64{8 << 20, 40 << 20}, found)
	assert.Less(t, total, int64(1<<20))
	found = nil
	require.NoError(t, EachExtent(f, 9<<20, 39<<20, func(start, _ int64) error { found = append(found, start); return nil }))
	assert.Empty(t, found)
}
