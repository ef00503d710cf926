package images

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestSimulatedStore(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0).UTC())
	s := &Simulated{Dir: filepath.Join(t.TempDir(), "images"), Clock: clock}
	ctx := context.Background()
	list, err := s.List()
	require.NoError(t, err)
	assert.Empty(t, list)

	image := Image{Name: "macos-26", Digest: "sha256:a", DiskSize: 1 << 30}
	first, err := s.Ensure(ctx, image, Needs{})
	require.NoError(t, err)
	info, err := os.Stat(first.Disk)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<30, info.Size())
	assert.Less(t, first.Bytes, int64(1<<20), "sparse")
	content, err := os.ReadFile(first.Aux)
	require.NoError(t, err)

	clock.SetTime(time.Unix(2000, 0).UTC())
	again, err := s.Ensure(ctx, image, Needs{})
	require.NoError(t, err)
	assert.Equal(t, time.Unix(2000, 0).UTC(), again.LastUsedAt)
	after, err := os.Stat(again.Disk)
	require.NoError(t, err)
	assert.Equal(t, info.ModTime(), after.ModTime(), "what is held is not fetched again")

	// An image with another digest is another image, and private stays private.
	image.Digest, image.Private = "sha256:b", true
	other, err := s.Ensure(ctx, image, Needs{})
	require.NoError(t, err)
	changed, err := os.ReadFile(other.Aux)
	require.NoError(t, err)
	assert.NotEqual(t, content, changed)

	// An interrupted image does not count.
	require.NoError(t, os.MkdirAll(filepath.Join(s.Dir, "half"), 0o700))
	list, err = (&Simulated{Dir: s.Dir, Clock: clock}).List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "sha256:b", list[0].Digest)
	assert.True(t, list[0].Private)

	require.NoError(t, s.Remove("macos-26"))
	require.NoError(t, s.Remove("macos-26"))
	assert.NoDirExists(t, filepath.Join(s.Dir, "macos-26"))
	for _, name := range []string{"", ".", "..", "../x", "a/b"} {
		require.Error(t, s.Remove(name), "%q", name)
		_, err := s.Ensure(ctx, Image{Name: name}, Needs{})
		require.Error(t, err, "%q", name)
	}
}
