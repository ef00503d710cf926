package disk

import (
	"os"
	"path/filepath"
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

func TestCloneRefusesWhatDoesNotFit(t *testing.T) {
	src := makeSparse(t, 4<<20, nil)
	dst := filepath.Join(t.TempDir(), "dst.img")
	_, err := Clone(src, dst, 1<<20)
	require.ErrorContains(t, err, "image disk has 4194304 bytes, the class allows 1048576")
	assert.NoFileExists(t, dst, "a failed clone leaves nothing behind")

	require.NoError(t, os.WriteFile(dst, []byte("precious"), 0o600))
	_, err = Clone(src, dst, 8<<20)
	require.ErrorIs(t, err, os.ErrExist)
	content, err := os.ReadFile(dst)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(content), "an existing disk is never overwritten")
}
