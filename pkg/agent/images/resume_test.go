package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// A killed agent leaves a partial pull that its successor resumes.
func TestKilledPullIsResumed(t *testing.T) {
	if dir := os.Getenv("TEST_PULL_DIR"); dir != "" {
		store := &OCI{Dir: dir, Clock: clock.RealClock{}, Parallel: 2}
		var image Image
		require.NoError(t, json.Unmarshal([]byte(os.Getenv("TEST_PULL_IMAGE")), &image))
		_, err := store.Ensure(context.Background(), image, Needs{})
		t.Fatal("the pull was to be killed, but ended: ", err)
	}
	w := newWorld(t)
	release := make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n > 4 { // the rest does not come
			select {
			case <-release:
			case <-r.Context().Done():
				return true
			}
		}
		return false
	})
	spec, err := json.Marshal(w.image)
	require.NoError(t, err)
	child := exec.Command(os.Args[0], "-test.run=^TestKilledPullIsResumed$", "-test.count=1")
	child.Env = append(os.Environ(), "TEST_PULL_DIR="+w.store.Dir, "TEST_PULL_IMAGE="+string(spec))
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	require.NoError(t, child.Start())
	require.Eventually(t, func() bool {
		j, err := w.store.readJournal(w.image.Name)
		return err == nil && len(j.Chunks) >= 4
	}, 20*time.Second, 20*time.Millisecond, "the journal has what was fetched: %s", &out)
	require.NoError(t, child.Process.Signal(syscall.SIGKILL))
	require.Error(t, child.Wait())
	close(release)

	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list, "what is not complete is not listed")
	unfinished, err := w.store.Unfinished()
	require.NoError(t, err)
	require.Len(t, unfinished, 1)
	assert.Equal(t, w.image.Digest, unfinished[0].Digest)
	assert.NotZero(t, unfinished[0].Bytes)

	j, err := w.store.readJournal(w.image.Name)
	require.NoError(t, err)
	before := len(w.requests())
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	const chunks = 8 + 1 + 1 // of data, of the auxiliary storage, and the config
	assert.Len(t, w.requests()[before:], chunks+1-len(j.Chunks), "what was there is not fetched again")
	assert.Contains(t, w.events[0].Message, "resuming at ")
	assert.Contains(t, w.events[1].Message, "reused from an earlier pull")
}

func TestCanceledPullIsResumed(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	ctx, cancel := context.WithCancel(t.Context())
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 4 {
			cancel()
			<-r.Context().Done()
		}
		return n == 4
	})
	_, err := w.store.Ensure(ctx, w.image, Needs{})
	require.ErrorIs(t, err, context.Canceled)
	j, err := w.store.readJournal(w.image.Name)
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 2}, j.Chunks, "nothing that was fetched is lost")
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

// Data that a killed agent wrote of an unfinished chunk is overwritten.
func TestRemainsAreOverwritten(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.store.Dir, w.image.Name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, diskName), bytes.Repeat([]byte{0xff}, 4*testChunk), 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, diskName), testDisk))
	require.NoError(t, os.WriteFile(filepath.Join(dir, auxName), make([]byte, len(w.aux)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q}`, w.image.Digest), 0o600))
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

func TestRemainsOfOthersAreNotUsed(t *testing.T) {
	for name, prepare := range map[string]func(dir string, image Image) error{
		"another image": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), []byte(`{"digest":"sha256:other","chunks":[0,1,2,3,4,5,6,7,8]}`), 0o600)
		},
		"no disk": func(dir string, image Image) error {
			return errors.Join(os.Remove(filepath.Join(dir, diskName)), os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q,"chunks":[0,1,2]}`, image.Digest), 0o600))
		},
		"no auxiliary storage": func(dir string, image Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q,"chunks":[0,1,2,3,4,5,6,7,8,9]}`, image.Digest), 0o600)
		},
		"a torn journal": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), []byte(`{"dig`), 0o600)
		},
		"torn metadata": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, metadataName), []byte(`{"dig`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := filepath.Join(w.store.Dir, w.image.Name)
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, diskName), nil, 0o600))
			require.NoError(t, os.Truncate(filepath.Join(dir, diskName), testDisk))
			require.NoError(t, prepare(dir, w.image))
			cached, err := w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}
