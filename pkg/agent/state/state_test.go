package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/agent/slots"
)

func TestCorruptState(t *testing.T) {
	for _, content := range []string{"", "{", "[]", `{"erased":1}`} {
		path := filepath.Join(t.TempDir(), "state.json")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		s, err := Open(path)
		require.NoError(t, err, content)
		assert.Equal(t, Data{}, s.Get())
		require.NoError(t, s.Change(func(d *Data) { d.LeaseUID = "l" }))
		aside, err := os.ReadFile(path + ".garbled")
		require.NoError(t, err)
		assert.Equal(t, content, string(aside))
		s, err = Open(path)
		require.NoError(t, err)
		assert.Equal(t, types.UID("l"), s.Get().LeaseUID)
	}
}

// Erasing works on a full disk.
func TestErasedInstanceIsStoredLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	s, err := Open(filepath.Join(dir, "state.json"))
	require.NoError(t, err)
	s.Erasing([]slots.Removed{{Path: "0/disk", Bytes: 1}})
	require.Error(t, s.Keep())
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, s.Keep())
	s, err = Open(s.path)
	require.NoError(t, err)
	assert.Equal(t, []string{"slots/0/disk (1 bytes)"}, s.Get().Erased)
}
