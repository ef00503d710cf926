package images

import (
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failingSync is a file whose first Sync fails, and whose next ones succeed although the data is
// lost.
type failingSync struct {
	file
	syncs  *atomic.Int64
	failed chan struct{}
}

func (f failingSync) Sync() error {
	if f.syncs.Add(1) == 1 {
		close(f.failed)
		return &os.PathError{Op: "sync", Path: diskName, Err: syscall.EIO}
	}
	return nil
}

func TestFailedSyncFailsThePull(t *testing.T) {
	w := newWorld(t)
	failed := make(chan struct{})
	var syncs atomic.Int64
	w.store.open = func(path string) (file, error) {
		f, err := openFile(path)
		if filepath.Base(path) == diskName {
			f = failingSync{f, &syncs, failed}
		}
		return f, err
	}
	w.interfere(func(_ http.ResponseWriter, _ *http.Request, n int) bool {
		if n > 4 { // more chunks arrive after the failure
			<-failed
		}
		return false
	})
	_, err := w.ensure()
	require.ErrorIs(t, err, syscall.EIO)
	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list)
	j, err := w.store.readJournal(w.image.Name)
	require.NoError(t, err)
	assert.Empty(t, j.Chunks, "nothing is known to be durable")

	w.store.open = nil
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

// A journal that could not be written is written later, also if no other chunk arrives.
func TestFailedJournalIsWrittenLater(t *testing.T) {
	store := &OCI{Dir: t.TempDir()}
	dir := filepath.Join(store.Dir, "macos-26")
	disk, err := openFile(filepath.Join(store.Dir, diskName))
	require.NoError(t, err)
	defer disk.Close()
	w := &work{store: store, dir: dir, disk: disk, aux: disk, done: map[int]bool{2: true, 1: true}}
	require.ErrorIs(t, w.writeJournal(), os.ErrNotExist)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, w.writeJournal())
	j, err := store.readJournal("macos-26")
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2}, j.Chunks)
}
