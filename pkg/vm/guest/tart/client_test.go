package tart

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
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

	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/agent"
	"macrack.io/macrack/pkg/vm/guest/tart/tartserver"
	tartv1 "macrack.io/macrack/pkg/vm/guest/tart/v1"
)

// realGuest runs commands on this host, without confinement.
type realGuest struct {
	*Client
	home     string
	shutdown chan struct{}
	stop     func()
}

func newRealGuest(t *testing.T) *realGuest {
	g := &realGuest{home: t.TempDir(), shutdown: make(chan struct{}, 1)}
	a, err := agent.New(agent.Config{
		Version: "v1", StateDir: t.TempDir(), Clock: clock.RealClock{}, Shutdown: func() {},
		Shell:     &agent.Shell{Home: g.home, Env: []string{"HOME=" + g.home, "PATH=" + os.Getenv("PATH")}},
		Addresses: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.168.64.7")}, nil },
	})
	require.NoError(t, err)
	behind := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = a.Serve(ctx, behind) }()
	inside, err := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return behind.DialContext(ctx) })
	require.NoError(t, err)
	t.Cleanup(inside.Close)

	front := bufconn.Listen(1 << 20)
	serving, stop := context.WithCancel(ctx)
	g.stop = stop
	server := &tartserver.Server{Guest: inside, Shutdown: func() { g.shutdown <- struct{}{} }}
	go func() { _ = server.Serve(serving, front) }()
	g.Client = client(t, front)
	return g
}

func client(t *testing.T, l *bufconn.Listener) *Client {
	c, err := NewClient(func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) })
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestExec(t *testing.T) {
	g := newRealGuest(t)
	for name, test := range map[string]struct {
		args           []string
		stdin          string
		stdout, stderr string
		code           int
	}{
		"streams":                {args: []string{"sh", "-c", "echo out; echo err >&2"}, stdout: "out\n", stderr: "err\n"},
		"exit code":              {args: []string{"sh", "-c", "exit 7"}, code: 7},
		"signal":                 {args: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		"stdin":                  {args: []string{"cat"}, stdin: strings.Repeat("to and fro ", 100_000), stdout: strings.Repeat("to and fro ", 100_000)},
		"no stdin":               {args: []string{"cat"}},
		"no shell":               {args: []string{"echo", "$HOME", "a b"}, stdout: "$HOME a b\n"},
		"processes left behind":  {args: []string{"sh", "-c", "sleep 60 >/dev/null 2>&1 & echo done"}, stdout: "done\n"},
		"input that is not read": {args: []string{"true"}, stdin: strings.Repeat("x", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			command := guest.Command{Args: test.args, Stdout: &stdout, Stderr: &stderr}
			if test.stdin != "" {
				command.Stdin = strings.NewReader(test.stdin)
			}
			code, err := g.Exec(deadline(t), command)
			require.NoError(t, err)
			assert.Equal(t, test.code, code)
			assert.Equal(t, test.stdout, stdout.String())
			assert.Equal(t, test.stderr, stderr.String())
		})
	}
	_, err := g.Exec(deadline(t), guest.Command{Args: []string{"no-such-command"}})
	require.ErrorContains(t, err, "executable file not found")
	_, err = g.Exec(deadline(t), guest.Command{})
	require.ErrorContains(t, err, "no command was given")
}

func TestTerminal(t *testing.T) {
	g := newRealGuest(t)
	stdin, typed := io.Pipe()
	var shown bytes.Buffer
	resize := make(chan guest.Size)
	go func() {
		resize <- guest.Size{Columns: 101, Rows: 37}
		time.Sleep(100 * time.Millisecond) // the agent confirms no resize
		_, _ = io.WriteString(typed, "stty size; exit 5\n")
	}()
	code, err := g.Exec(deadline(t), guest.Command{Args: []string{"sh"}, Stdin: stdin, Stdout: &shown, TTY: true, Resize: resize})
	require.NoError(t, err)
	assert.Equal(t, 5, code)
	assert.Contains(t, shown.String(), "37 101")
}

func TestInfoAndShutdown(t *testing.T) {
	g := newRealGuest(t)
	info, err := g.Info(deadline(t))
	require.NoError(t, err)
	assert.Equal(t, &guest.Info{Version: "tart", Addresses: []netip.Addr{netip.MustParseAddr("192.168.64.7")}, SetsEnvironment: true}, info)
	require.NoError(t, g.Shutdown(deadline(t)))
	select {
	case <-g.shutdown:
	case <-time.After(time.Minute):
		require.FailNow(t, "the guest does not shut down")
	}
}

func TestGuestLiesAboutItsAddress(t *testing.T) {
	for name, test := range map[string]struct {
		ip   string
		err  error
		want string
	}{
		"address":         {ip: "10.0.0.7", want: "10.0.0.7"},
		"mapped":          {ip: "::ffff:10.0.0.7", want: "10.0.0.7"},
		"nonsense":        {ip: "not an address"},
		"host's loopback": {ip: "127.0.0.1"},
		"link-local":      {ip: "169.254.169.254"},
		"multicast":       {ip: "224.0.0.1"},
		"a zone":          {ip: "fe80::1%en0"},
		"gigabyte":        {ip: strings.Repeat("1", 1<<20)},
		"none":            {err: errors.New("cannot resolve VM's IP address")},
		"no such method":  {err: status.Error(codes.Unimplemented, "unknown method ResolveIP for service Agent")},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := serve(t, &faultyGuest{ip: func(context.Context) (string, error) { return test.ip, test.err }})
			info, err := c.Info(deadline(t))
			require.NoError(t, err, "an answer means that the guest is up")
			if test.want == "" {
				assert.Empty(t, info.Addresses)
				return
			}
			assert.Equal(t, []netip.Addr{netip.MustParseAddr(test.want)}, info.Addresses)
		})
	}
}

func TestGuestNeverAnswers(t *testing.T) {
	c, _ := serve(t, &faultyGuest{ip: func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Info(ctx)
	require.ErrorIs(t, err, guest.ErrSilent)

	refused, err := NewClient(func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") })
	require.NoError(t, err)
	defer refused.Close()
	_, err = refused.Exec(deadline(t), guest.Command{Args: []string{"true"}})
	require.ErrorIs(t, err, guest.ErrSilent)
	require.ErrorContains(t, err, "connection refused")
}

// A guest that accepts connections and says nothing holds no call up.
func TestHalfOpenConnection(t *testing.T) {
	c, err := NewClient(func(context.Context) (net.Conn, error) {
		local, _ := net.Pipe()
		return local, nil
	})
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Exec(ctx, guest.Command{Args: []string{"true"}})
	require.ErrorIs(t, err, guest.ErrSilent)
	_, err = c.Setup(ctx, guest.Setup{InstanceUID: "a", SSHAuthorizedKeys: []string{"ssh-rsa A"}}, 0, nil)
	require.ErrorIs(t, err, guest.ErrSilent)
}

// full is a reader that has enough.
type full struct{ room int }

var errFull = errors.New("enough")

func (f *full) Write(data []byte) (int, error) {
	if f.room -= len(data); f.room < 0 {
		return 0, errFull
	}
	return len(data), nil
}

func TestEndlessOutput(t *testing.T) {
	ended := make(chan error, 1)
	c, _ := serve(t, &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		data := make([]byte, 128<<10)
		for {
			if err := stream.Send(stdout(data)); err != nil {
				ended <- err
				return err
			}
		}
	}})
	_, err := c.Exec(deadline(t), guest.Command{Args: []string{"yes"}, Stdout: &full{room: 32 << 20}})
	require.ErrorIs(t, err, errFull)
	require.Error(t, <-ended, "the command ends with its reader")
}

func TestExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		answers []*tartv1.ExecResponse
		code    int
		err     string
	}{
		"a signal, by an old agent": {answers: []*tartv1.ExecResponse{exit(-1)}, code: 255},
		"no exit code of a process": {answers: []*tartv1.ExecResponse{exit(256)}, code: 255},
		"started, then ended":       {answers: []*tartv1.ExecResponse{{Type: &tartv1.ExecResponse_Started_{}}, {}, exit(3)}, code: 3},
		"none":                      {answers: []*tartv1.ExecResponse{stdout([]byte("x"))}, err: "ended without an exit code"},
		"a message that is too big": {answers: []*tartv1.ExecResponse{stdout(make([]byte, 2*guest.MaxMessage))}, err: "larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := serve(t, &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
				for _, answer := range test.answers {
					if err := stream.Send(answer); err != nil {
						return err
					}
				}
				return nil
			}})
			code, err := c.Exec(deadline(t), guest.Command{Args: []string{"true"}})
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.code, code)
		})
	}
}

func TestGuestHangsDuringCommand(t *testing.T) {
	hung := make(chan struct{})
	f := &faultyGuest{
		exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
			close(hung)
			<-stream.Context().Done()
			return nil
		},
		ip: func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		},
	}
	c, _ := serve(t, f)
	c.interval, c.timeout = 10*time.Millisecond, 50*time.Millisecond
	_, err := c.Exec(deadline(t), guest.Command{Args: []string{"sleep", "600"}})
	require.ErrorIs(t, err, guest.ErrLost)
	<-hung
}

func TestGuestGoesAwayDuringCommand(t *testing.T) {
	f := &faultyGuest{}
	c, server := serve(t, f)
	f.exec = func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		go server.Stop()
		<-stream.Context().Done()
		return nil
	}
	_, err := c.Exec(deadline(t), guest.Command{Args: []string{"sleep", "600"}})
	require.ErrorIs(t, err, guest.ErrLost, "the command may have run, although it printed nothing")
}

// A quiet command outlives the pings that the server of tart's agent permits.
func TestQuietCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 35 seconds")
	}
	t.Parallel()
	c, _ := serve(t, &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		select {
		case <-time.After(35 * time.Second):
			return stream.Send(exit(0))
		case <-stream.Context().Done():
			return nil
		}
	}})
	_, err := c.Exec(deadline(t), guest.Command{Args: []string{"sleep", "35"}})
	require.NoError(t, err)
}

func TestFailedShutdown(t *testing.T) {
	c, _ := serve(t, &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		for range 1000 {
			if err := stream.Send(stderr("sudo: a password is required\n")); err != nil {
				return err
			}
		}
		return stream.Send(exit(1))
	}})
	err := c.Shutdown(deadline(t))
	require.ErrorContains(t, err, "sudo: a password is required")
	assert.LessOrEqual(t, len(err.Error()), maxError, "a guest does not fill the host's memory with its errors")
}

func TestForward(t *testing.T) {
	f := &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		for {
			request, err := stream.Recv()
			if err != nil {
				return err
			}
			if len(request.GetStandardInput().GetData()) == 0 {
				return stream.Send(exit(0))
			}
			if err := stream.Send(stdout(request.GetStandardInput().GetData())); err != nil {
				return err
			}
		}
	}}
	c, _ := serve(t, f)
	local, remote := net.Pipe()
	forwarded := make(chan error, 1)
	go func() { forwarded <- c.Forward(deadline(t), 5900, remote) }()
	_, err := local.Write([]byte("hello"))
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(local, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	require.NoError(t, local.Close())
	require.NoError(t, <-forwarded)

	f.exec = func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		return stream.Send(exit(1))
	}
	require.EqualError(t, c.Forward(deadline(t), 5900, remote), "port 5900 of the guest: exit code 1")
	require.ErrorContains(t, c.Forward(deadline(t), 0, remote), "port 0 is invalid")
}

// A service that does not end its direction of a connection does not keep it forever.
func TestForwardEnds(t *testing.T) {
	f := &faultyGuest{exec: func(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
		<-stream.Context().Done()
		return nil
	}}
	c, _ := serve(t, f)
	c.halfOpen = 50 * time.Millisecond
	local, remote := net.Pipe()
	require.NoError(t, local.Close())
	require.ErrorIs(t, c.Forward(deadline(t), 5900, remote), context.Canceled)
}
