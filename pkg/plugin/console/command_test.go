package console

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/plugin/plugintest"
)

func TestCommand(t *testing.T) {
	f := plugintest.New()
	cmd := NewCommand(f.Env)
	cmd.SetArgs([]string{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	require.Eventually(t, func() bool { return strings.Contains(f.Out.String(), "Ctrl-C ends the console.\n") }, 10*time.Second, time.Millisecond)
	assert.Regexp(t, regexp.MustCompile(`^The console is at http://127\.0\.0\.1:\d+/[0-9a-f]{64}/\n`), f.Out.String())
	cancel()
	assert.NoError(t, <-done)
	assert.Error(t, plugintest.New().Try(t, NewCommand, "argument"))
}

// The browser gets the address in a file, not in arguments, which other users can read.
func TestBrowserFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	require.NoError(t, os.WriteFile(dir+"/xdg-open", []byte("#!/bin/sh\necho \"$@\" > "+dir+"/arguments.new\nmv "+dir+"/arguments.new "+dir+"/arguments\n"), 0o755))
	t.Setenv("PATH", dir+":/bin:/usr/bin")
	remove, err := openBrowser("http://127.0.0.1:1/secret/")
	require.NoError(t, err)
	var arguments []byte
	require.Eventually(t, func() bool {
		arguments, err = os.ReadFile(dir + "/arguments")
		return err == nil
	}, 10*time.Second, time.Millisecond)
	file := strings.TrimSpace(string(arguments))
	assert.NotContains(t, file, "secret")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(text), `content="0;url=http://127.0.0.1:1/secret/"`)
	remove()
	_, err = os.Stat(file)
	assert.ErrorIs(t, err, os.ErrNotExist)

	t.Setenv("PATH", t.TempDir())
	_, err = openBrowser("http://127.0.0.1:1/secret/")
	assert.ErrorContains(t, err, "failed to open the browser")
}
