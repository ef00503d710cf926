package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"run", "log"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	crashed := &Process{Name: "crashed", Program: sleep, Args: []string{"600"}, PIDFile: filepath.Join(dir, "run", "crashed.pid"), LogFile: filepath.Join(dir, "log", "crashed.log")}
	killed := &Process{Name: "killed", Program: sleep, Args: []string{"600"}, PIDFile: filepath.Join(dir, "run", "killed.pid"), LogFile: filepath.Join(dir, "log", "killed.log")}
	for _, p := range []*Process{crashed, killed} {
		require.NoError(t, p.Start())
		t.Cleanup(func() { assert.NoError(t, p.Kill(context.Background())) })
	}
	before, ok := crashed.Running()
	require.True(t, ok)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Keep(ctx, dir, os.Stderr) }()
	require.NoError(t, killed.Kill(t.Context()))
	require.NoError(t, syscall.Kill(before.PID, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		after, ok := crashed.Running()
		return ok && after.PID != before.PID
	}, 2*time.Minute, 50*time.Millisecond, "a crashed component must be restarted")
	after, _ := crashed.Running()
	assert.Equal(t, before.Args, after.Args)
	_, ok = killed.Running()
	assert.False(t, ok, "a component that was killed on purpose must stay down")

	cancel()
	assert.NoError(t, <-done)
}
