package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

func TestCaches(t *testing.T) {
	caches := t.TempDir()
	for _, name := range []string{"gems", "sources", "other-lease"} {
		require.NoError(t, os.Mkdir(filepath.Join(caches, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(caches, name, "before"), []byte("kept in "+name), 0o600))
	}
	v := start(t, func(s *contract.Spec) {
		s.Shares = []contract.Share{
			{Name: "gems", Path: filepath.Join(caches, "gems")}, {Name: "sources", Path: filepath.Join(caches, "sources"), ReadOnly: true},
		}
		s.StartupScript = `ls "$MACRACK_CACHES" && cat "$MACRACK_CACHES/gems/before" && echo new > "$MACRACK_CACHES/gems/after"`
	}).ready()
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
	assert.Equal(t, "gems\nsources\nkept in gems", state.StartupScript.OutputTail)
	assert.Zero(t, state.StartupScript.ExitCode)
	assert.FileExists(t, filepath.Join(caches, "gems", "after"))

	out, code := v.sh("cat ~/macrack-caches/sources/before; mkdir ~/macrack-caches/gems/deep && ln -s / ~/macrack-caches/gems/root")
	assert.Equal(t, "kept in sources", out)
	assert.Zero(t, code)
	for name, script := range map[string]string{
		"write to a read-only cache":        "echo x > ~/macrack-caches/sources/before",
		"remove from a read-only cache":     "rm -f ~/macrack-caches/sources/before",
		"read the cache of another lease":   "cat ~/macrack-caches/gems/../../other-lease/before " + filepath.Join(caches, "other-lease", "before"),
		"list the caches of the Mac":        "ls " + caches,
		"follow a link in a cache":          fmt.Sprintf("ln -s %s ~/macrack-caches/gems/link && cat ~/macrack-caches/gems/link", filepath.Join(caches, "other-lease", "before")),
		"follow a link to the host's files": "cat ~/macrack-caches/gems/root/etc/shadow",
		"replace a cache":                   "mv ~/macrack-caches/gems/deep " + filepath.Join(caches, "other-lease") + "/",
	} {
		t.Run(name, func(t *testing.T) {
			out, code := v.sh(script)
			assert.NotZero(t, code, out)
		})
	}
	content, err := os.ReadFile(filepath.Join(caches, "sources", "before"))
	require.NoError(t, err)
	assert.Equal(t, "kept in sources", string(content))
}

// Without caches, the variable is not set.
func TestNoCaches(t *testing.T) {
	v := start(t, func(s *contract.Spec) { s.StartupScript = `echo "${MACRACK_CACHES-none}"` })
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
	assert.Equal(t, "none\n", state.StartupScript.OutputTail)
}

func TestInvalidShares(t *testing.T) {
	for _, share := range []contract.Share{{Name: "..", Path: "/tmp"}, {Name: "a/b", Path: "/tmp"}, {Path: "/tmp"}, {Name: "a", Path: "tmp"}, {Name: "a"}} {
		spec := &contract.Spec{InstanceUID: "u", Namespace: "n", Name: "n", MachineID: "i", MACAddress: "m", CPU: 1, MemoryBytes: 1, Shares: []contract.Share{share}}
		err := spec.Validate()
		require.Error(t, err, "%+v", share)
		assert.True(t, strings.HasPrefix(err.Error(), "invalid share"), err)
	}
}
