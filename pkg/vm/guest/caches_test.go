package guest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/agent"
)

// The system mounts the shared directories at some time during the boot.
func TestCachesAreLinked(t *testing.T) {
	root := t.TempDir()
	source, dir := filepath.Join(root, "My Shared Files"), filepath.Join(root, "caches")
	require.NoError(t, os.Symlink("elsewhere", dir), "of an older image")
	c := realAgent(t, func(c *agent.Config) { c.Caches = &agent.Caches{Dir: dir, Source: source} })
	time.AfterFunc(300*time.Millisecond, func() { _ = os.MkdirAll(filepath.Join(source, "gems"), 0o700) })
	var out bytes.Buffer
	setup := guest.Setup{InstanceUID: "a", StartupScript: `echo "$MACRACK_CACHES"; ls "$MACRACK_CACHES/"`, Caches: true}
	result, err := c.Setup(deadline(t), setup, 0, func(data []byte) { out.Write(data) })
	require.NoError(t, err)
	assert.Zero(t, result.ExitCode)
	assert.Equal(t, dir+"\ngems\n", out.String())
}

func TestCachesThatAreNotAvailable(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "caches", "of the user"), 0o700))
	for name, caches := range map[string]*agent.Caches{
		"no place":              nil,
		"a directory is in use": {Dir: filepath.Join(root, "caches"), Source: root},
	} {
		t.Run(name, func(t *testing.T) {
			c := realAgent(t, func(c *agent.Config) { c.Caches = caches })
			var out bytes.Buffer
			setup := guest.Setup{InstanceUID: "a", StartupScript: `echo "${MACRACK_CACHES-none}"`, Caches: true}
			result, err := c.Setup(deadline(t), setup, 0, func(data []byte) { out.Write(data) })
			require.NoError(t, err)
			assert.Zero(t, result.ExitCode)
			assert.Regexp(t, `^macrack-guest-agent: .*cache.*\nnone\n$`, out.String())
		})
	}
}
