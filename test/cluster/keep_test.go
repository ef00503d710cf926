package cluster

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
	crashed := &process{name: "crashed", program: sleep, args: []string{"600"}, pidFile: filepath.Join(dir, "run", "crashed.pid"), logFile: filepath.Join(dir, "log", "crashed.log")}
	killed := &process{name: "killed", program: sleep, args: []string{"600"}, pidFile: filepath.Join(dir, "run", "killed.pid"), logFile: filepath.Join(dir, "log", "killed.log")}
	for _, p := range []*process{crashed, killed} {
		require.NoError(t, p.start())
		t.Cleanup(func() { assert.NoError(t, p.kill(context.Background())) })
	}
	before, ok := crashed.running()
	require.True(t, ok)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Keep(ctx, dir, os.Stderr) }()
	require.NoError(t, killed.kill(t.Context()))
	require.NoError(t, syscall.Kill(before.PID, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		after, ok := crashed.running()
		return ok && after.PID != before.PID
	}, 2*time.Minute, 50*time.Millisecond, "a crashed component must be restarted")
	after, _ := crashed.running()
	assert.Equal(t, before.Args, after.Args)
	_, ok = killed.running()
	assert.False(t, ok, "a component that was killed on purpose must stay down")

	cancel()
	assert.NoError(t, <-done)
}
