package process

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChild(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	c := &Child{Name: "test", Program: "/bin/sh", Args: []string{"-c", "echo $GREETING >&2; echo ready; exec sleep 600"}, Env: []string{"GREETING=hello"}, LogFile: log, Prints: "ready"}
	require.NoError(t, c.Start())
	assert.True(t, c.Running())
	c.Kill()
	assert.False(t, c.Running())
	assert.False(t, c.Crashed(), "it was killed on purpose")
	require.NoError(t, c.Start())
	c.Stop()
	c.Stop()
	assert.False(t, c.Running())
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	assert.Equal(t, 2, bytes.Count(data, []byte("hello\n")))
}

func TestChildFailure(t *testing.T) {
	c := &Child{Name: "test", Program: "/bin/sh", Args: []string{"-c", "exit 3"}, LogFile: filepath.Join(t.TempDir(), "log")}
	require.NoError(t, c.Start())
	require.Eventually(t, c.Crashed, time.Minute, 10*time.Millisecond)
	assert.ErrorContains(t, c.WaitReady(t.Context(), nil), "test has ended")
	c.Prints = "ready"
	assert.ErrorContains(t, c.Start(), `wanted "ready"`)
}
