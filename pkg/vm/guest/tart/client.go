// Package tart is a client of tart's guest agent, which images made for tart contain. The agent
// runs commands and reports an address; keys, the startup script, the shutdown and forwarded ports
// are commands that macOS has.
package tart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"macrack.io/macrack/pkg/vm/guest"
	tartv1 "macrack.io/macrack/pkg/vm/guest/tart/v1"
)

const (
	// Port is the vsock port on which tart's guest agent listens.
	Port = 8080
	// Version is the version that Info reports: the protocol has none.
	Version = "tart"

	// maxExitCode is the exit code of a command whose own is no exit code of a process, such as the
	// -1 that older agents report after a signal.
	maxExitCode = 255
	// maxError bounds the error output of a command that this package runs, in bytes.
	maxError = 1 << 10
	// chunk is the size of a message with input, in bytes.
	chunk = 32 << 10
)

// errHung is the reason why a call is ended.
var errHung = errors.New("the guest did not respond during the call")

// Client is a client of one guest's agent. It implements guest.Agent.
type Client struct {
	conn *grpc.ClientConn
	api  tartv1.AgentClient
	// interval and timeout detect a guest that hangs during a call, by a question to the agent.
	// Keepalive pings of gRPC cannot: the agent's server permits one in five minutes, and closes
	// the connection of a client that sends more.
	interval, timeout time.Duration
	// halfOpen is shorter in tests.
	halfOpen time.Duration
}

var _ guest.Agent = (*Client)(nil)

// NewClient returns a client that reaches the guest through dial. It connects on first use, and
// reconnects as necessary. The caller must close it.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) (*Client, error) {
	conn, err := guest.NewConn(dial)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, api: tartv1.NewAgentClient(conn), interval: 10 * time.Second, timeout: 5 * time.Second, halfOpen: guest.HalfOpen}, nil
}

// Close implements guest.Agent.
func (c *Client) Close() { _ = c.conn.Close() }

// Info implements guest.Agent.
func (c *Client) Info(ctx context.Context) (*guest.Info, error) {
	answer, err := c.api.ResolveIP(ctx, &tartv1.ResolveIPRequest{}, grpc.WaitForReady(true))
	if silent(err) {
		return nil, guest.Translate(err)
	}
	// An error is an answer too: a guest without an address, or an agent from before ResolveIP.
	info := &guest.Info{Version: Version, SetsEnvironment: true}
	// The tenant controls the guest, so its text need not be an address.
	if a, err := netip.ParseAddr(answer.GetIp()); err == nil && guest.Useful(a.Unmap()) {
		info.Addresses = []netip.Addr{a.Unmap()}
	}
	return info, nil
}

// silent reports whether err means that the agent did not respond.
func silent(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// Exec implements guest.Agent.
func (c *Client) Exec(ctx context.Context, command guest.Command) (int, error) {
	if len(command.Args) == 0 {
		return 0, errors.New("guest agent: no command was given")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.api.Exec(ctx)
	if err != nil {
		return 0, guest.Translate(err)
	}
	s := &session{stream: stream, command: command}
	s.start(ctx)
	go c.watch(ctx, cancel)
	code, err := s.receive()
	switch {
	case err == nil:
		return code, nil
	case errors.Is(context.Cause(ctx), errHung):
		return 0, fmt.Errorf("%w: %w", guest.ErrLost, errHung)
	case status.Code(err) == codes.Unavailable:
		// The agent had the command, and need not say so.
		return 0, fmt.Errorf("%w: %s", guest.ErrLost, status.Convert(err).Message())
	default:
		return 0, err
	}
}

// watch ends the call of ctx when the guest stops responding.
func (c *Client) watch(ctx context.Context, end context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.interval):
		}
		try, cancel := context.WithTimeout(ctx, c.timeout)
		_, err := c.api.ResolveIP(try, &tartv1.ResolveIPRequest{})
		cancel()
		if silent(err) {
			end(errHung)
			return
		}
	}
}

// session is one command and its streams.
type session struct {
	stream  grpc.BidiStreamingClient[tartv1.ExecRequest, tartv1.ExecResponse]
	command guest.Command
	mu      sync.Mutex // serializes sends
}

func (s *session) send(request *tartv1.ExecRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(request) // Recv returns the cause of a failure
}

// start sends the command, and then its input until ctx ends. The sending side stays open: older
// agents end a command whose caller closes it.
func (s *session) start(ctx context.Context) {
	command := &tartv1.ExecRequest_Command{
		Name: s.command.Args[0], Args: s.command.Args[1:], Interactive: s.command.Stdin != nil, Tty: s.command.TTY,
	}
	if s.command.TTY {
		command.TerminalSize = &tartv1.TerminalSize{Cols: 80, Rows: 24}
		command.Env = map[string]string{"TERM": "xterm-256color"}
	}
	_ = s.send(&tartv1.ExecRequest{Type: &tartv1.ExecRequest_Command_{Command: command}})
	if s.command.Stdin != nil {
		go func() {
			_, _ = io.CopyBuffer(input{s}, struct{ io.Reader }{s.command.Stdin}, make([]byte, chunk))
			_, _ = input{s}.Write(nil)
		}()
	}
	if s.command.TTY && s.command.Resize != nil {
		go s.resize(ctx)
	}
}

// input is the command's standard input.
type input struct{ session *session }

func (i input) Write(data []byte) (int, error) {
	return len(data), i.session.send(&tartv1.ExecRequest{Type: &tartv1.ExecRequest_StandardInput{StandardInput: &tartv1.IOChunk{Data: data}}})
}

func (s *session) resize(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case size := <-s.command.Resize:
			if size == (guest.Size{}) {
				return // closed: no more sizes follow
			}
			if s.send(&tartv1.ExecRequest{Type: &tartv1.ExecRequest_TerminalResize{
				TerminalResize: &tartv1.TerminalSize{Cols: uint32(size.Columns), Rows: uint32(size.Rows)},
			}}) != nil {
				return
			}
		}
	}
}

// receive passes the command's output on, and returns its exit code.
func (s *session) receive() (int, error) {
	for {
		answer, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("guest agent: the command ended without an exit code")
		}
		if status.Code(err) == codes.Unavailable {
			return 0, err
		}
		if err != nil {
			return 0, guest.Translate(err)
		}
		switch kind := answer.GetType().(type) {
		case *tartv1.ExecResponse_StandardOutput:
			err = write(s.command.Stdout, kind.StandardOutput)
		case *tartv1.ExecResponse_StandardError:
			err = write(s.command.Stderr, kind.StandardError)
		case *tartv1.ExecResponse_Exit_:
			if code := kind.Exit.GetCode(); code >= 0 && code <= maxExitCode {
				return int(code), nil
			}
			return maxExitCode, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func write(w io.Writer, data *tartv1.IOChunk) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(data.GetData())
	return err
}

// shutdown uses what tart's images permit: sudo without a password, or the user's session.
const shutdown = `sudo -n /sbin/shutdown -h now || osascript -e 'tell application "System Events" to shut down'`

// Shutdown implements guest.Agent.
func (c *Client) Shutdown(ctx context.Context) error {
	if _, err := c.Info(ctx); err != nil { // waits for the agent
		return err
	}
	_, err := c.run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", shutdown}})
	return err
}

// Forward implements guest.Agent, with the nc of macOS.
func (c *Client) Forward(ctx context.Context, port uint16, local io.ReadWriter) error {
	if port == 0 {
		return errors.New("guest agent: port 0 is invalid; use a port from 1 to 65535")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin := &notifier{Reader: local, ended: func() { time.AfterFunc(c.halfOpen, cancel) }}
	_, err := c.run(ctx, guest.Command{Args: []string{"/usr/bin/nc", "localhost", strconv.Itoa(int(port))}, Stdin: stdin, Stdout: local})
	if failed := (*failure)(nil); errors.As(err, &failed) {
		return fmt.Errorf("port %d of the guest: %w", port, err)
	}
	return err
}

// notifier calls ended when its reader has ended.
type notifier struct {
	io.Reader
	ended func()
}

func (n *notifier) Read(p []byte) (int, error) {
	size, err := n.Reader.Read(p)
	if err != nil {
		n.ended()
	}
	return size, err
}

// failure is the error of a command that exited with another code than 0.
type failure struct {
	code int
	text string
}

func (f *failure) Error() string {
	if f.text == "" {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.text
}

// run runs a command and returns the beginning of its error output. Another exit code than 0 is a
// *failure.
func (c *Client) run(ctx context.Context, command guest.Command) (string, error) {
	stderr := &beginning{}
	command.Stderr = stderr
	code, err := c.Exec(ctx, command)
	text := strings.TrimSpace(strings.ToValidUTF8(string(stderr.data), "\uFFFD"))
	if err == nil && code != 0 {
		err = &failure{code, text}
	}
	return text, err
}

// beginning keeps the first maxError bytes and drops the rest.
type beginning struct{ data []byte }

func (b *beginning) Write(data []byte) (int, error) {
	b.data = append(b.data, data[:min(len(data), maxError-len(b.data))]...)
	return len(data), nil
}
