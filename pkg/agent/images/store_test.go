package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An image that is missing on the disk is not listed, and is pulled again.
func TestListIsTrue(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"everything":     func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"its directory":  os.RemoveAll,
		"its disk":       func(dir string) error { return os.Remove(filepath.Join(dir, diskName)) },
		"half its disk":  func(dir string) error { return os.Truncate(filepath.Join(dir, diskName), testDisk/2) },
		"its metadata":   func(dir string) error { return os.Remove(filepath.Join(dir, metadataName)) },
		"its metadata's": func(dir string) error { return os.WriteFile(filepath.Join(dir, metadataName), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.ensure()
			require.NoError(t, err)
			require.NoError(t, harm(filepath.Join(w.store.Dir, w.image.Name)))
			list, err := w.store.List()
			require.NoError(t, err)
			assert.Empty(t, list)
			cached, err := w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}
