// Package third_party tests that copies of other projects differ from their releases only as
// described.
package third_party

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	vzVersion = "github.com/Code-Hex/vz/v3@v3.7.1"
	// vzSum is the checksum of vzVersion in the checksum database.
	vzSum = "h1:EN1yNiyrbPq+dl388nne2NySo8I94EnPppvqypA65XM="
	patch = "vz/macrack.patch"
)

var update = flag.Bool("update", false, "write the difference to "+patch)

// ours are the files that vz does not have, or that the copy replaces.
var ours = map[string]bool{"README.md": true, "go.mod": true, "go.sum": true, "macrack.patch": true}

// TestVZ compares the copy of vz with its release.
func TestVZ(t *testing.T) {
	release := download(t, vzVersion, vzSum)
	root := t.TempDir()
	original, patched := filepath.Join(root, "a"), filepath.Join(root, "b")
	require.NoError(t, filepath.WalkDir("vz", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel("vz", path)
		require.NoError(t, err)
		if ours[name] {
			return nil
		}
		copyFile(t, filepath.Join(release, name), filepath.Join(original, name))
		copyFile(t, path, filepath.Join(patched, name))
		return nil
	}))
	if *update {
		writePatch(t, root)
	}
	stored, err := filepath.Abs(patch)
	require.NoError(t, err)
	apply := exec.CommandContext(t.Context(), "git", "apply", "--whitespace=nowarn", stored)
	apply.Dir = original
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+root)
	out, err := apply.CombinedOutput()
	require.NoError(t, err, "%s does not apply to %s: %s", patch, vzVersion, out)
	diff, err := exec.CommandContext(t.Context(), "diff", "-ru", original, patched).CombinedOutput()
	assert.NoError(t, err, "the copy differs from %s by more than %s:\n%s", vzVersion, patch, diff)
}

// download returns the folder of a module in the cache. Its checksum must be sum.
func download(t *testing.T, module, sum string) string {
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // outside of the module that replaces it
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	var downloaded struct{ Dir, Sum string }
	require.NoError(t, json.Unmarshal(out, &downloaded))
	require.Equal(t, sum, downloaded.Sum)
	return downloaded.Dir
}

func copyFile(t *testing.T, from, to string) {
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// writePatch writes the difference between the folders a and b of root.
func writePatch(t *testing.T, root string) {
	diff := exec.CommandContext(t.Context(), "git", "diff", "--no-index", "--no-color", "--no-prefix", "a", "b")
	diff.Dir = root
	out, err := diff.Output()
	var differs *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &differs, "%s", out)
	}
	require.NoError(t, os.WriteFile(patch, out, 0o600))
}
