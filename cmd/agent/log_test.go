package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// With a log file, standard error contains only the agent's fatal error, because it is not rotated.
func TestLogFile(t *testing.T) {
	state := klog.CaptureState()
	defer state.Restore()
	dir := t.TempDir()
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	require.NoError(t, err)
	old := os.Stderr
	os.Stderr = stderr
	defer func() { os.Stderr = old; _ = stderr.Close() }()

	o := &options{logFile: filepath.Join(dir, "agent.log")}
	o.log()
	klog.InfoS("A word")
	klog.ErrorS(errors.New("refused"), "Some failure")
	klog.Flush()

	logged, err := os.ReadFile(o.logFile)
	require.NoError(t, err)
	assert.Contains(t, string(logged), "A word")
	assert.Contains(t, string(logged), "Some failure")
	onStderr, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	assert.Empty(t, string(onStderr))
}
