package process

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testProcess(t *testing.T, script string) *Process {
	dir := t.TempDir()
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	p := &Process{Name: "test", Program: shell, Args: []string{"-c", script}, PIDFile: filepath.Join(dir, "test.pid"), LogFile: filepath.Join(dir, "test.log")}
	t.Cleanup(func() { assert.NoError(t, p.Kill(context.Background())) })
	return p
}

func TestProcessStartStop(t *testing.T) {
	p := testProcess(t, "exec sleep 600")
	require.NoError(t, p.Start())
	assert.False(t, p.Outdated())

	changed := *p
	changed.Args = []string{"-c", "exec sleep 601"}
	assert.True(t, changed.Outdated(), "other arguments are another process")

	require.NoError(t, p.Stop(t.Context()))
	_, ok := p.Running()
	assert.False(t, ok)
	assert.NoFileExists(t, p.PIDFile)
	require.NoError(t, p.Stop(t.Context()), "stopping again is no error")
}

// A pid that another process has reused must not be signalled.
func TestProcessForeignPID(t *testing.T) {
	p := testProcess(t, "exec sleep 600")
	other := exec.Command("sleep", "600")
	require.NoError(t, other.Start())
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()

	data, err := json.Marshal(Record{PID: other.Process.Pid, Began: "earlier"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.PIDFile, data, 0o644))
	_, ok := p.Running()
	assert.False(t, ok)
	require.NoError(t, p.Stop(t.Context()))
	require.NoError(t, os.WriteFile(p.PIDFile, data, 0o644))
	require.NoError(t, p.Kill(t.Context()))

	_, err = began(other.Process.Pid)
	assert.NoError(t, err, "the other process must live")
	require.NoError(t, other.Process.Kill())
	<-ended
	_, err = began(other.Process.Pid)
	assert.Error(t, err)
}

func TestProcessFailure(t *testing.T) {
	p := testProcess(t, "echo the reason >&2; exit 3")
	p.Ready = func(context.Context) error { return assert.AnError }
	if err := p.Start(); err == nil {
		err = p.WaitReady(t.Context())
		require.Error(t, err)
		assert.Contains(t, err.Error(), "test has ended")
		assert.Contains(t, err.Error(), "the reason")
	}

	p = testProcess(t, "echo still busy; exec sleep 600")
	p.Ready = func(context.Context) error { return assert.AnError }
	require.NoError(t, p.Start())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := p.WaitReady(ctx)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "test is not ready")
	assert.Contains(t, err.Error(), assert.AnError.Error())
	assert.Contains(t, err.Error(), "still busy")
}

func TestStopStrays(t *testing.T) {
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	script := func(arg string) *exec.Cmd {
		cmd := exec.Command(shell, "-c", "while :; do "+sleep+" 1; done", arg)
		require.NoError(t, cmd.Start())
		return cmd
	}
	ours, other := script(filepath.Join(dir, "spec")), script("/elsewhere/spec")
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	require.NoError(t, StopStrays(t.Context(), shell, dir))
	assert.Error(t, ours.Wait(), "killed")
	_, err = began(other.Process.Pid)
	assert.NoError(t, err, "pid "+strconv.Itoa(other.Process.Pid)+" is not ours")
}
