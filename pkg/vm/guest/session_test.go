package guest_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/agent"
)

// logIn runs the agent of a login session on a socket until stop is called. It returns a client of
// its other listener.
func logIn(t *testing.T, socket string) (client *guest.Client, stop func()) {
	shell := &agent.Shell{Home: t.TempDir(), Env: []string{"PATH=/session"}}
	shell.InheritEnv([]string{"PATH=" + os.Getenv("PATH"), "SHELL=/bin/zsh"})
	a, err := agent.New(agent.Config{Version: "v1", Clock: clock.RealClock{}, Shell: shell, InSession: true})
	require.NoError(t, err)
	inside, err := net.Listen("unix", socket)
	require.NoError(t, err)
	outside := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx, outside, inside) }()
	client, err = guest.NewClient(func(ctx context.Context) (net.Conn, error) { return outside.DialContext(ctx) })
	require.NoError(t, err)
	return client, func() {
		client.Close()
		cancel()
		require.NoError(t, <-done)
	}
}

func TestAgentInSession(t *testing.T) {
	c, stop := logIn(t, filepath.Join(t.TempDir(), "s"))
	defer stop()
	_, err := c.Setup(deadline(t), guest.Setup{InstanceUID: "a"}, 0, func([]byte) {})
	require.ErrorContains(t, err, "use the guest's system agent")
	require.ErrorContains(t, c.Shutdown(deadline(t)), "use the guest's system agent")
	var out bytes.Buffer
	code, err := c.Exec(deadline(t), guest.Command{Args: []string{"sh", "-c", "echo $SHELL"}, Stdout: &out})
	require.NoError(t, err)
	assert.Zero(t, code)
	assert.Equal(t, "/bin/zsh\n", out.String(), "the environment is that of the session")
}

// script runs a startup script and returns its result and its output.
func script(t *testing.T, c *guest.Client, text string) (*guest.SetupResult, string) {
	var out bytes.Buffer
	setup := guest.Setup{InstanceUID: "a", StartupScript: text, Environment: []contract.EnvironmentVariable{{Name: "TOKEN", Value: []byte("a=b")}}}
	result, err := c.Setup(deadline(t), setup, 0, func(data []byte) { out.Write(data) })
	require.NoError(t, err)
	return result, out.String()
}

func TestScriptWaitsForTheSession(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := realAgent(t, func(c *agent.Config) {
		c.Session = &agent.Session{Socket: socket, Port: guest.SessionPort, Patience: time.Minute}
	})
	info, err := c.Info(deadline(t))
	require.NoError(t, err)
	assert.Zero(t, info.SessionPort)
	assert.True(t, info.SessionPending)
	time.AfterFunc(300*time.Millisecond, func() {
		_, stop := logIn(t, socket)
		t.Cleanup(stop)
	})
	result, out := script(t, c, "echo $SHELL $TOKEN; exit 5")
	assert.EqualValues(t, 5, result.ExitCode)
	assert.Equal(t, "/bin/zsh a=b\n", out, "the script gets its environment in the session")
	info, err = c.Info(deadline(t))
	require.NoError(t, err)
	assert.EqualValues(t, guest.SessionPort, info.SessionPort)
	assert.False(t, info.SessionPending)
}

func TestScriptWithoutSession(t *testing.T) {
	c := realAgent(t, func(c *agent.Config) {
		c.Session = &agent.Session{Socket: filepath.Join(t.TempDir(), "s"), Patience: 300 * time.Millisecond}
	})
	result, out := script(t, c, "echo ran $TOKEN")
	assert.Zero(t, result.ExitCode)
	assert.Equal(t, "macrack-guest-agent: no user is logged in; the script runs without a login session\nran a=b\n", out)
	info, err := c.Info(deadline(t))
	require.NoError(t, err)
	assert.False(t, info.SessionPending, "the host does not wait for ever")
}

func TestSessionEndsDuringScript(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := realAgent(t, func(c *agent.Config) { c.Session = &agent.Session{Socket: socket, Port: guest.SessionPort} })
	_, stop := logIn(t, socket)
	ended := false
	result, err := c.Setup(deadline(t), guest.Setup{InstanceUID: "a", StartupScript: "echo began; sleep 600"}, 0, func([]byte) {
		if !ended {
			ended = true
			stop()
		}
	})
	require.NoError(t, err)
	assert.EqualValues(t, 255, result.ExitCode)
	assert.Equal(t, "the startup script failed: the login session ended while the script ran", result.Reason)
}

func TestDiskGrowsBeforeScript(t *testing.T) {
	grown := 0
	var fails error
	c := realAgent(t, func(c *agent.Config) {
		c.GrowDisk = func(context.Context) error { grown++; return fails }
	})
	for _, uid := range []string{"a", "a", "b"} {
		result, err := c.Setup(deadline(t), guest.Setup{InstanceUID: uid}, 0, func([]byte) {})
		require.NoError(t, err)
		assert.Equal(t, &guest.SetupResult{}, result)
	}
	assert.Equal(t, 2, grown, "once for each instance, with and without a script")
	fails = errors.New("partition disk0s3 follows")
	var out bytes.Buffer
	result, err := c.Setup(deadline(t), guest.Setup{InstanceUID: "c", StartupScript: "echo ran"}, 0, func(data []byte) { out.Write(data) })
	require.NoError(t, err)
	assert.Zero(t, result.ExitCode)
	assert.Equal(t, "macrack-guest-agent: the file system keeps the size of the image: partition disk0s3 follows\nran\n", out.String())
}
