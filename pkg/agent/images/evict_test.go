package images

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

// finite is a disk of limited size that holds only images.
func (w *world) finite(size int64) {
	w.store.free = func(string) (int64, error) {
		all, err := names(w.store.Dir)
		free := size
		for _, name := range all {
			n, _ := occupied(filepath.Join(w.store.Dir, name))
			free -= n
		}
		return free, err
	}
}

func TestEviction(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t)
	fake := clocktesting.NewFakeClock(time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC))
	w.store.Clock = fake
	content := func(seed byte, chunks int) []byte {
		data := make([]byte, chunks*testChunk)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
		return data
	}
	fetch := func(name string, seed byte, chunks int, needs Needs) error {
		fake.Step(time.Hour)
		pushed := w.push("macos/"+name+":1", content(seed, chunks))
		needs.OnEvent = func(e Event) { w.events = append(w.events, e) }
		_, err := w.store.Ensure(t.Context(), Image{Name: name, Reference: w.host() + "/macos/" + name + ":1", Digest: pushed.Digest.String(), DiskSize: 1 << 30}, needs)
		return err
	}
	held := func() (names []string) {
		list, err := w.store.List()
		require.NoError(t, err)
		for _, c := range list {
			names = append(names, c.Name)
		}
		return names
	}
	keep := func(names ...string) func() ([]string, error) { return func() ([]string, error) { return names, nil } }

	w.finite(20 * mib)
	require.NoError(t, fetch("a", 1, 4, Needs{}))
	require.NoError(t, fetch("b", 2, 4, Needs{}))
	require.NoError(t, fetch("c", 3, 4, Needs{}))
	require.NoError(t, fetch("a", 1, 4, Needs{})) // used again: b is the one to go first
	w.events = nil

	// More than 7 MiB are free. Two images must be evicted for this one, but b is in use.
	require.NoError(t, fetch("d", 4, 8, Needs{MinimumFree: 3 * mib, Keep: keep("b")}))
	assert.Equal(t, []string{"a", "b", "d"}, held(), "a was used after c")
	require.NotEmpty(t, w.events)
	assert.Equal(t, EventEvicted, w.events[0].Reason)
	assert.Contains(t, w.events[0].Message, "Removed image c (4.0 MiB), unused since 2026-08-01T03:00:00Z, to make room for image d")

	// The caches of the lease keep their room too.
	w.events = nil
	err := fetch("c", 3, 1, Needs{MinimumFree: 1 * mib, Caches: 16 * mib, Keep: keep("a", "b", "d")})
	assert.ErrorContains(t, err, ", and the caches of the lease may take 16.0 MiB of that; unused images")

	// Evicting all unused images would not suffice, so none is evicted.
	w.events = nil
	err = fetch("e", 5, 12, Needs{MinimumFree: 3 * mib, Keep: keep("b", "d")})
	var noRoom *NoRoomError
	require.ErrorAs(t, err, &noRoom)
	assert.EqualValues(t, 12*mib, noRoom.Needed-int64(len(w.aux)))
	assert.ErrorContains(t, err, "image e needs 12.0 MiB, and 3.0 MiB must stay free (imageCache.minimumFree), but only 4.0 MiB are free; unused images occupy 4.0 MiB")
	assert.Equal(t, []string{"a", "b", "d"}, held())
	assert.Empty(t, w.events, "nothing was begun")

	// Partial pulls are evicted before complete images.
	require.NoError(t, os.MkdirAll(filepath.Join(w.store.Dir, "half"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(w.store.Dir, "half", diskName), content(9, 2), 0o600))
	require.NoError(t, fetch("f", 6, 3, Needs{}))
	assert.Equal(t, []string{"a", "b", "d", "f"}, held())
	assert.NoDirExists(t, filepath.Join(w.store.Dir, "half"))
	assert.Contains(t, w.events[0].Message, "Removed image half (2.0 MiB), a partial pull that no instance waits for")

	// Without a list of the images in use, no image is evicted.
	err = fetch("g", 7, 8, Needs{Keep: func() ([]string, error) { return nil, errors.New("no cache") }})
	require.ErrorContains(t, err, "no cache")
	assert.Equal(t, []string{"a", "b", "d", "f"}, held())
}

// Storage reserved for a pull is not assigned twice, and an image is not evicted during its pull.
func TestPullsDoNotShareRoom(t *testing.T) {
	w := newWorld(t)
	w.finite(20 << 20)
	w.store.Parallel = 1
	fetching, release := make(chan struct{}), make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 1 {
			close(fetching)
		}
		<-release
		return false
	})
	done := make(chan error, 1)
	go func() { _, err := w.store.Ensure(t.Context(), w.image, Needs{}); done <- err }()
	<-fetching
	second := w.image
	second.Name = "macos-27"
	w.setBefore(nil)
	_, err := w.store.Ensure(t.Context(), second, Needs{MinimumFree: 10 << 20})
	var noRoom *NoRoomError
	require.ErrorAs(t, err, &noRoom)
	assert.EqualValues(t, w.pushed.Bytes+int64(len(w.aux)), noRoom.Reserved)
	assert.Zero(t, noRoom.Evictable)
	assert.ErrorContains(t, err, "and other pulls need")
	close(release)
	require.NoError(t, <-done)
}
