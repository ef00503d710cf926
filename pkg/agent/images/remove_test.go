package images

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
)

func TestRemove(t *testing.T) {
	w := newWorld(t)
	w.image.Private = true
	fetching := make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 5 {
			close(fetching)
		}
		if n >= 5 {
			<-r.Context().Done()
		}
		return n >= 5
	})
	failed := make(chan error, 1)
	go func() { _, err := w.store.Ensure(t.Context(), w.image, Needs{}); failed <- err }()
	<-fetching
	progress, found := w.store.Progress(w.image.Name)
	require.True(t, found)
	assert.Equal(t, w.pushed.Compressed, progress.Total)
	assert.Regexp(t, `^\d+% \(.* of .*\)$`, progress.String())
	unfinished, err := w.store.Unfinished()
	require.NoError(t, err)
	require.Len(t, unfinished, 1)
	assert.True(t, unfinished[0].Private, "a scrub finds what a tenant's credentials have fetched, also in part")

	require.NoError(t, w.store.Remove(w.image.Name))
	require.ErrorIs(t, <-failed, errRemoved)
	assert.NoDirExists(t, filepath.Join(w.store.Dir, w.image.Name))
	_, found = w.store.Progress(w.image.Name)
	assert.False(t, found)

	w.setBefore(nil)
	_, err = w.ensure()
	require.NoError(t, err)
	require.NoError(t, w.store.Remove(w.image.Name))
	require.NoError(t, w.store.Remove(w.image.Name))
	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list)
	require.Error(t, w.store.Remove(".."))
}

// A scrub finds a private image until all of it is removed, wherever the removal was interrupted.
func TestInterruptedRemoval(t *testing.T) {
	errKilled := errors.New("killed")
	for _, private := range []bool{true, false} {
		for after := 0; ; after++ {
			store := &OCI{Dir: t.TempDir(), Clock: clocktesting.NewFakeClock(time.Now())}
			dir := filepath.Join(store.Dir, "secret")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			for name, content := range map[string]string{
				diskName: "disk", auxName: "nvram", ".image.json.123": "torn",
				journalName:  fmt.Sprintf(`{"digest":"sha256:d","private":%t}`, private),
				metadataName: fmt.Sprintf(`{"name":"secret","digest":"sha256:d","private":%t,"diskSize":4}`, private),
			} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
			}
			removed := 0
			err := removeInOrder(dir, func(path string) error {
				if removed == after {
					return errKilled
				}
				removed++
				return contract.RemoveFile(path)
			})
			if err == nil {
				assert.NoDirExists(t, dir)
				assert.Equal(t, 5, after)
				break
			}
			require.ErrorIs(t, err, errKilled)

			held, err := store.List()
			require.NoError(t, err)
			left, err := store.Unfinished()
			require.NoError(t, err)
			if after > 0 {
				assert.Empty(t, held, "without its disk it is not complete")
			}
			all := append(held, left...)
			require.Len(t, all, 1)
			assert.Equal(t, private, all[0].Private, "after %d files", after)
			assert.Equal(t, "sha256:d", all[0].Digest)
			require.NoError(t, store.Remove("secret"))
			assert.NoDirExists(t, dir)
		}
	}
}

func TestRemainsOfUnknownPrivacyArePrivate(t *testing.T) {
	for name, tc := range map[string]struct {
		metadata, journal string
		private           bool
	}{
		"nothing":                         {private: true},
		"a torn journal":                  {journal: `{"dig`, private: true},
		"torn metadata, a public journal": {metadata: `{"dig`, journal: `{"digest":"sha256:d"}`, private: true},
		"a public journal":                {journal: `{"digest":"sha256:d"}`},
		"a private journal":               {journal: `{"digest":"sha256:d","private":true}`, private: true},
		"private metadata":                {metadata: `{"digest":"sha256:d","private":true}`, private: true},
		"public metadata":                 {metadata: `{"digest":"sha256:d"}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			image := filepath.Join(dir, "image")
			require.NoError(t, os.MkdirAll(image, 0o700))
			for file, content := range map[string]string{metadataName: tc.metadata, journalName: tc.journal} {
				if content != "" {
					require.NoError(t, os.WriteFile(filepath.Join(image, file), []byte(content), 0o600))
				}
			}
			for _, store := range []Store{&OCI{Dir: dir}, &Simulated{Dir: dir}} {
				left, err := store.Unfinished()
				require.NoError(t, err)
				require.Len(t, left, 1)
				assert.Equal(t, tc.private, left[0].Private)
			}
		})
	}
}
