package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
)

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
