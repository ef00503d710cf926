package process

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guardedDir is set in the child that TestGuard kills.
const guardedDir = "TEST_GUARDED_DIR"

func TestGuard(t *testing.T) {
	if dir := os.Getenv(guardedDir); dir != "" {
		startGuarded(t, dir)
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "cluster", "log"), 0o755))
	child := exec.Command(os.Args[0], "-test.run=^TestGuard$", "-test.v")
	child.Env = append(os.Environ(), guardedDir+"="+dir)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var pid int
	for lines := bufio.NewScanner(stdout); pid == 0 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "pid "); ok {
			pid, err = strconv.Atoi(text)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, pid)
	_, err = began(pid)
	require.NoError(t, err)

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	assert.Eventually(t, func() bool {
		_, err := began(pid)
		return err != nil
	}, 2*time.Minute, 50*time.Millisecond, "the component must end with the program that started it")
	assert.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "cluster"))
		return os.IsNotExist(err)
	}, 2*time.Minute, 50*time.Millisecond, "the temporary folder must be removed")
}

// startGuarded starts a component with a guard, prints its pid, and waits to be killed.
func startGuarded(t *testing.T, dir string) {
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.Symlink(shell, filepath.Join(bin, "sh")))
	cluster := filepath.Join(dir, "cluster")
	_, err = NewGuard(bin, cluster, true)
	require.NoError(t, err)
	p := &Process{
		Name: "component", Program: filepath.Join(bin, "sh"), Args: []string{"-c", "while :; do sleep 1; done", filepath.Join(cluster, "data")},
		PIDFile: filepath.Join(cluster, "component.pid"), LogFile: filepath.Join(cluster, "log", "component.log"),
	}
	require.NoError(t, p.Start())
	rec, ok := p.Running()
	require.True(t, ok)
	_, _ = os.Stdout.WriteString("pid " + strconv.Itoa(rec.PID) + "\n")
	time.Sleep(10 * time.Minute)
}
