package cluster

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
	_, err = processBegan(pid)
	require.NoError(t, err)

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	assert.Eventually(t, func() bool {
		_, err := processBegan(pid)
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
	c := &Cluster{dir: filepath.Join(dir, "cluster"), bin: bin, temporary: true}
	require.NoError(t, c.guard())
	p := &process{
		name: "component", program: filepath.Join(bin, "sh"), args: []string{"-c", "while :; do sleep 1; done", filepath.Join(c.dir, "data")},
		pidFile: filepath.Join(c.dir, "component.pid"), logFile: filepath.Join(c.dir, "log", "component.log"),
	}
	require.NoError(t, p.start())
	rec, ok := p.running()
	require.True(t, ok)
	_, _ = os.Stdout.WriteString("pid " + strconv.Itoa(rec.PID) + "\n")
	time.Sleep(10 * time.Minute)
}
