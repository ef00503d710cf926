package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/plugin/terminal"
)

const (
	admin = "admin"
	acme  = "acme"

	// patience is the timeout of every condition, on a busy machine.
	patience = time.Minute
	columns  = 80
)

// plugin returns the command kubectl-macrack for a user. It can connect only to kube-apiserver.
func plugin(ctx context.Context, user string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, self, append([]string{binary, "--context", user}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+tb.Kubeconfig, "TERM=xterm", confined+"="+strconv.Itoa(tb.Cluster.Port("kube-apiserver")))
	return cmd
}

type output struct {
	stdout, stderr string
	code           int
}

// piped runs the plugin with pipes.
func piped(t *testing.T, user string, args ...string) output {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := plugin(ctx, user, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// succeeds runs the plugin with pipes, which must succeed, and returns its output, which must be
// text of at most 80 columns without colours.
func succeeds(t *testing.T, user string, args ...string) string {
	t.Helper()
	out := piped(t, user, args...)
	require.Zero(t, out.code, out.stderr)
	assertText(t, out.stdout)
	return out.stdout
}

func assertText(t *testing.T, text string) {
	t.Helper()
	for _, line := range strings.Split(text, "\n") {
		assert.LessOrEqual(t, terminal.Width(line), columns, line)
		assert.Equal(t, terminal.Clean(line), line)
	}
}

// A session is a plugin in a terminal of 80 columns.
type session struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	ended  chan error

	mu   sync.Mutex
	text strings.Builder
}

// start runs the plugin in a terminal.
func start(t *testing.T, user string, args ...string) *session {
	t.Helper()
	cmd := plugin(t.Context(), user, args...)
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: columns})
	require.NoError(t, err)
	s := &session{t: t, cmd: cmd, master: master, ended: make(chan error, 1)}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				break
			}
		}
		s.ended <- cmd.Wait()
	}()
	t.Cleanup(func() { master.Close() })
	return s
}

// output returns what the terminal has received.
func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *session) waitFor(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.output(), text) }, patience, 50*time.Millisecond, "%q in %s", text, lazy(s.output))
}

// lazy is a message that is made when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }

func (s *session) send(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.master, text)
	require.NoError(s.t, err)
}

const ctrlC = "\x03"

// wait waits for the end and returns the exit code.
func (s *session) wait() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		require.Fail(s.t, "the plugin does not end", s.output())
	}
	return s.cmd.ProcessState.ExitCode()
}
