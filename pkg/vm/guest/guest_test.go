package guest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/agent"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

func client(t *testing.T, l *bufconn.Listener) *guest.Client {
	c, err := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) })
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// realAgent serves a guest agent whose commands are not confined.
func realAgent(t *testing.T, change func(*agent.Config)) *guest.Client {
	config := agent.Config{
		Version: "v1", StateDir: t.TempDir(), Clock: clock.RealClock{}, Shutdown: func() {},
		Shell: &agent.Shell{Home: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}},
	}
	if change != nil {
		change(&config)
	}
	a, err := agent.New(config)
	require.NoError(t, err)
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return client(t, l)
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestForward(t *testing.T) {
	c := realAgent(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(w, req.Body)
	}))
	defer server.Close()
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	local, remote := net.Pipe()
	forwarded := make(chan error, 1)
	go func() { forwarded <- c.Forward(deadline(t), address.Port(), remote) }()
	web := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return local, nil }}}
	body := strings.Repeat("0123456789", 50_000)
	resp, err := web.Post("http://guest/", "text/plain", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, body, string(got))
	server.CloseClientConnections()
	require.NoError(t, <-forwarded)

	server.Close()
	err = c.Forward(deadline(t), address.Port(), remote)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, c.Forward(deadline(t), 0, remote), "port 0 is invalid")
}

func TestShutdown(t *testing.T) {
	asked := make(chan struct{})
	c := realAgent(t, func(c *agent.Config) { c.Shutdown = func() { close(asked) } })
	require.NoError(t, c.Shutdown(deadline(t)))
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the guest does not shut down")
	}
}

func TestInfo(t *testing.T) {
	c := realAgent(t, func(c *agent.Config) {
		c.Addresses = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil }
	})
	info, err := c.Info(deadline(t))
	require.NoError(t, err)
	assert.Equal(t, &guest.Info{Version: "v1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, SetsEnvironment: true}, info)
}

func TestSetupOfAnotherInstance(t *testing.T) {
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	keys := filepath.Join(home, ".ssh", "authorized_keys")
	require.NoError(t, os.WriteFile(keys, []byte("ssh-rsa OLD of the image"), 0o644))
	c := realAgent(t, func(c *agent.Config) { c.Shell.Home = home })
	run := func(uid string) string {
		var out bytes.Buffer
		result, err := c.Setup(deadline(t), guest.Setup{InstanceUID: uid, SSHAuthorizedKeys: []string{"ssh-rsa NEW"}, StartupScript: "echo " + uid},
			0, func(data []byte) { out.Write(data) })
		require.NoError(t, err)
		assert.Zero(t, result.ExitCode)
		return out.String()
	}
	assert.Equal(t, "a\n", run("a"))
	assert.Equal(t, "a\n", run("a"), "told again, not done again")
	assert.Equal(t, "b\n", run("b"), "an image that was made of a guest has been set up as another instance")
	data, err := os.ReadFile(keys)
	require.NoError(t, err)
	assert.Equal(t, "ssh-rsa OLD of the image\nssh-rsa NEW\n", string(data))
	_, err = c.Setup(deadline(t), guest.Setup{}, 0, func([]byte) {})
	require.ErrorContains(t, err, "the instance UID is missing")
	_, err = c.Setup(deadline(t), guest.Setup{InstanceUID: "c", SSHAuthorizedKeys: []string{"a\nb"}}, 0, func([]byte) {})
	require.ErrorContains(t, err, "more than one line")
}

func TestSetupOutputIsBounded(t *testing.T) {
	c := realAgent(t, nil)
	var got int
	result, err := c.Setup(deadline(t), guest.Setup{InstanceUID: "a", StartupScript: "head -c 3000000 /dev/zero; exit 4"}, 0, func(data []byte) { got += len(data) })
	require.NoError(t, err)
	assert.EqualValues(t, 4, result.ExitCode, "a script is not ended for what it prints")
	assert.Equal(t, guest.MaxScriptOutput, got)
}

// A script that does not start has an exit code of its own, and a reason.
func TestScriptThatDoesNotStart(t *testing.T) {
	c := realAgent(t, nil)
	for uid, setup := range map[string]guest.Setup{
		"no such file or directory": {StartupScript: "#!/no/such/interpreter"},
		"argument list too long":    {StartupScript: "true", Environment: []contract.EnvironmentVariable{{Name: "A", Value: make200KiB()}}}, // too long for Linux
	} {
		setup.InstanceUID = uid
		result, err := c.Setup(deadline(t), setup, 0, func([]byte) {})
		require.NoError(t, err)
		assert.EqualValues(t, 255, result.ExitCode)
		assert.Contains(t, result.Reason, uid)
		assert.NotContains(t, result.Reason, "aaaa", "the reason has no values")
	}
}

func make200KiB() []byte { return bytes.Repeat([]byte("a"), 200<<10) }

// hostile is a guest that its tenant has modified.
type hostile struct {
	guestv1.UnimplementedGuestServer
	info *guestv1.InfoResponse
}

func (h *hostile) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	return h.info, nil
}

func (h *hostile) Exec(stream guestv1.Guest_ExecServer) error {
	return stream.Send(&guestv1.ExecResponse{Kind: &guestv1.ExecResponse_Stdout{Stdout: make([]byte, 2*guest.MaxMessage)}})
}

func (h *hostile) Shutdown(context.Context, *guestv1.ShutdownRequest) (*guestv1.ShutdownResponse, error) {
	return nil, status.Error(codes.Internal, strings.Repeat("x", 1<<20))
}

func TestGuestsAreNotTrusted(t *testing.T) {
	h := &hostile{info: &guestv1.InfoResponse{Addresses: []string{"nonsense", "127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "fe80::1%en0", "10.0.0.7"}}}
	server := grpc.NewServer()
	guestv1.RegisterGuestServer(server, h)
	l := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	c := client(t, l)
	info, err := c.Info(deadline(t))
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.7")}, info.Addresses)
	h.info = &guestv1.InfoResponse{Addresses: make([]string, 1_000_000)}
	_, err = c.Info(deadline(t))
	require.ErrorContains(t, err, "larger than max")
	_, err = c.Exec(deadline(t), guest.Command{Args: []string{"true"}})
	require.ErrorContains(t, err, "larger than max")
	err = c.Shutdown(deadline(t))
	require.Error(t, err)
	require.Less(t, len(err.Error()), guest.MaxHeader)
}

func TestSilentGuest(t *testing.T) {
	c, err := guest.NewClient(func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") })
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Exec(deadline(t), guest.Command{Args: []string{"true"}})
	require.ErrorIs(t, err, guest.ErrSilent)
	require.ErrorContains(t, err, "connection refused")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Info(ctx)
	require.ErrorIs(t, err, guest.ErrSilent)
}
