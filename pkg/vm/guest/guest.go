// Package guest is the host's side of the contract with the agent inside a guest. It uses gRPC
// (package v1) over a connection to one port of the guest, a vsock on a Mac.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"macrack.io/macrack/pkg/vm/contract"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

const (
	// Port is the vsock port on which the guest agent listens.
	Port = 1026
	// SessionPort is the vsock port on which the agent in the user's login session listens.
	SessionPort = 1027
	// MaxMessage bounds a message of the guest, in bytes.
	MaxMessage = 256 << 10
	// MaxHeader bounds the headers and the trailers of an answer of the guest, in bytes. They have
	// the text of its errors.
	MaxHeader = 16 << 10
	// MaxRequest bounds a message of the host, in bytes. A setup has the environment, the script
	// and the keys.
	MaxRequest = 2 << 20
	// MaxScriptOutput bounds the stored output of a startup script, in bytes.
	MaxScriptOutput = 1 << 20
	// HalfOpen is how long a forwarded connection lasts after the local side has ended.
	HalfOpen = 5 * time.Minute
	// MaxCommands is the limit of concurrent commands and forwarded connections of a guest.
	MaxCommands = 32

	// chunk is the size of a message of a stream, in bytes.
	chunk = 32 << 10
	// connectTimeout bounds one connection attempt.
	connectTimeout = 5 * time.Second
	// pingInterval and pingTimeout detect a guest that hangs during a call. The call fails after
	// the sum of both. gRPC does not permit a shorter interval.
	pingInterval = 10 * time.Second
	pingTimeout  = 5 * time.Second
	// maxAddresses is the limit of addresses that are read from a guest.
	maxAddresses = 16
)

// ErrSilent means that the guest agent is not reachable, or does not respond.
var ErrSilent = errors.New("the guest agent does not respond")

// ErrLost means that the connection to the guest agent was lost during a call.
var ErrLost = errors.New("the connection to the guest agent was lost while the command ran; the result of the command is unknown")

// Agent is a client of a guest's agent, in whichever protocol the agent speaks.
type Agent interface {
	// Info requests the information of the guest. It waits until the agent responds or ctx ends.
	Info(ctx context.Context) (*Info, error)
	// Setup passes keys and script to the guest, and follows the script. See Client.Setup.
	Setup(ctx context.Context, setup Setup, offset int64, output func([]byte)) (*SetupResult, error)
	// Shutdown asks the guest to shut down, and does not wait for the shutdown.
	Shutdown(ctx context.Context) error
	// Exec runs a command in the guest and returns its exit code. See Client.Exec.
	Exec(ctx context.Context, command Command) (int, error)
	// Forward connects local to a TCP port of the guest's loopback interface.
	Forward(ctx context.Context, port uint16, local io.ReadWriter) error
	// Close closes the connection and ends every call.
	Close()
}

// Client is a client of MacRack's guest agent.
type Client struct {
	conn *grpc.ClientConn
	api  guestv1.GuestClient
}

// NewClient returns a client that reaches the guest through dial. It connects on first use, and
// reconnects as necessary. The caller must close it.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) (*Client, error) {
	conn, err := NewConn(dial, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}))
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, api: guestv1.NewGuestClient(conn)}, nil
}

// NewConn returns a gRPC connection that reaches a guest through dial. It bounds messages,
// errors and connection attempts, as for every agent in a guest.
func NewConn(dial func(ctx context.Context) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///guest", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a vsock connects only the host and the guest
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(MaxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxRequest)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	}, options...)...)
}

// Close closes the connection and ends every call.
func (c *Client) Close() { _ = c.conn.Close() }

// Info is the information that a guest reports.
type Info struct {
	Version string
	// Addresses are its IP addresses, the most useful first.
	Addresses []netip.Addr
	// SessionPort is the vsock port of the agent in the user's login session; 0 while no user is
	// logged in.
	SessionPort uint32
	// SessionPending means that a login session is expected soon.
	SessionPending bool
	// SetsEnvironment reports whether the guest agent can set the environment of a startup script.
	SetsEnvironment bool
}

// Info requests the information of the guest. It waits until the guest agent responds or ctx ends.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	answer, err := c.api.Info(ctx, &guestv1.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, Translate(err)
	}
	info := &Info{
		Version: answer.GetVersion(), SetsEnvironment: answer.GetSetsEnvironment(),
		SessionPort: answer.GetSessionPort(), SessionPending: answer.GetSessionPending(),
	}
	// The tenant controls the guest, so its text need not be an address.
	for _, text := range answer.GetAddresses()[:min(len(answer.GetAddresses()), maxAddresses)] {
		if a, err := netip.ParseAddr(text); err == nil && Useful(a) {
			info.Addresses = append(info.Addresses, a)
		}
	}
	return info, nil
}

// Useful reports whether a is a reachable address of a guest.
func Useful(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// Setup is the setup of a new guest.
type Setup struct {
	InstanceUID       string
	SSHAuthorizedKeys []string
	StartupScript     string
	// Environment is the environment of the startup script.
	Environment []contract.EnvironmentVariable
	// Caches means that the host shares caches with the guest.
	Caches bool
}

// SetupResult is the result of a setup.
type SetupResult struct {
	// ExitCode is that of the startup script; 0 without a script.
	ExitCode int32
	// Reason is set if the script did not exit by itself.
	Reason string
}

// Setup passes keys and script to the guest, and follows the script until it has ended or the
// connection is lost. The guest runs the setup once; a repeated call follows it again. offset is
// the number of output bytes already received; output receives the rest.
func (c *Client) Setup(ctx context.Context, setup Setup, offset int64, output func([]byte)) (*SetupResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &guestv1.SetupRequest{
		InstanceUid: setup.InstanceUID, SshAuthorizedKeys: setup.SSHAuthorizedKeys, StartupScript: setup.StartupScript, OutputOffset: offset, Caches: setup.Caches,
	}
	for _, v := range setup.Environment {
		request.Environment = append(request.Environment, &guestv1.EnvironmentVariable{Name: v.Name, Value: v.Value})
	}
	stream, err := c.api.Setup(ctx, request)
	if err != nil {
		return nil, Translate(err)
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return nil, Translate(err)
		}
		switch kind := answer.GetKind().(type) {
		case *guestv1.SetupResponse_Output:
			output(kind.Output)
		case *guestv1.SetupResponse_Result:
			return &SetupResult{ExitCode: kind.Result.GetExitCode(), Reason: kind.Result.GetReason()}, nil
		}
	}
}

// Shutdown asks the guest to shut down once its agent responds. It does not wait for the shutdown.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.api.Shutdown(ctx, &guestv1.ShutdownRequest{}, grpc.WaitForReady(true))
	return Translate(err)
}

// Size is the size of a terminal.
type Size struct{ Columns, Rows uint16 }

func (s Size) message() *guestv1.TerminalSize {
	return &guestv1.TerminalSize{Columns: uint32(s.Columns), Rows: uint32(s.Rows)}
}

// Command is what Exec runs.
type Command struct {
	// Args are the command and its arguments.
	Args []string
	// Environment has variables in addition to those of the user, as NAME=VALUE.
	Environment []string
	// Stdin may be nil. A blocked Read outlives Exec.
	Stdin io.Reader
	// Stdout and Stderr may be nil. With a TTY, Stderr receives nothing.
	Stdout, Stderr io.Writer
	TTY            bool
	// Resize receives the sizes of the terminal, starting with the first.
	Resize <-chan Size
}

// Exec runs a command in the guest and returns its exit code. The command is
// killed when ctx ends.
func (c *Client) Exec(ctx context.Context, command Command) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Exec(ctx)
	if err != nil {
		return 0, Translate(err)
	}
	var mu sync.Mutex
	send := func(request *guestv1.ExecRequest) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(request) // Recv returns the cause of a failure
	}
	start := &guestv1.ExecStart{Command: command.Args, Stdin: command.Stdin != nil, Tty: command.TTY}
	for _, variable := range command.Environment {
		name, value, _ := strings.Cut(variable, "=")
		start.Environment = append(start.Environment, &guestv1.EnvironmentVariable{Name: name, Value: []byte(value)})
	}
	_ = send(&guestv1.ExecRequest{Kind: &guestv1.ExecRequest_Start{Start: start}})
	if command.Stdin != nil {
		go func() {
			_ = inChunks(command.Stdin, func(data []byte) error {
				return send(&guestv1.ExecRequest{Kind: &guestv1.ExecRequest_Stdin{Stdin: data}})
			})
			_ = send(&guestv1.ExecRequest{Kind: &guestv1.ExecRequest_StdinClosed{StdinClosed: true}})
		}()
	}
	if command.TTY && command.Resize != nil {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case size := <-command.Resize:
					if size == (Size{}) {
						return // closed: no more sizes follow
					}
					if send(&guestv1.ExecRequest{Kind: &guestv1.ExecRequest_Resize{Resize: size.message()}}) != nil {
						return
					}
				}
			}
		}()
	}
	began := false
	for {
		answer, err := stream.Recv()
		if err != nil {
			if began && status.Code(err) == codes.Unavailable {
				return 0, fmt.Errorf("%w: %s", ErrLost, status.Convert(err).Message())
			}
			return 0, Translate(err)
		}
		began = true
		switch kind := answer.GetKind().(type) {
		case *guestv1.ExecResponse_Stdout:
			err = write(command.Stdout, kind.Stdout)
		case *guestv1.ExecResponse_Stderr:
			err = write(command.Stderr, kind.Stderr)
		case *guestv1.ExecResponse_ExitCode:
			return int(kind.ExitCode), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func write(w io.Writer, data []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(data)
	return err
}

// inChunks sends the data of r until it ends or send fails.
func inChunks(r io.Reader, send func([]byte) error) error {
	buffer := make([]byte, chunk)
	for {
		n, err := r.Read(buffer)
		if n > 0 {
			if err := send(buffer[:n:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Forward connects local to a TCP port of the guest's loopback interface until both directions or
// ctx have ended. A blocked Read of local outlives it.
func (c *Client) Forward(ctx context.Context, port uint16, local io.ReadWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Forward(ctx)
	if err != nil {
		return Translate(err)
	}
	_ = stream.Send(&guestv1.ForwardRequest{Kind: &guestv1.ForwardRequest_Port{Port: uint32(port)}})
	if _, err := stream.Recv(); err != nil { // the guest has connected
		return Translate(err)
	}
	go func() {
		_ = inChunks(local, func(data []byte) error {
			return stream.Send(&guestv1.ForwardRequest{Kind: &guestv1.ForwardRequest_Data{Data: data}})
		})
		_ = stream.Send(&guestv1.ForwardRequest{Kind: &guestv1.ForwardRequest_Closed{Closed: true}})
		end := time.AfterFunc(HalfOpen, cancel)
		<-ctx.Done()
		end.Stop()
	}()
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return Translate(err)
		}
		switch kind := answer.GetKind().(type) {
		case *guestv1.ForwardResponse_Data:
			if _, err := local.Write(kind.Data); err != nil {
				return err
			}
		case *guestv1.ForwardResponse_Closed:
			if half, ok := local.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
				continue
			}
			return nil // a stream without half-close cannot signal more
		}
	}
}

// Translate turns errors of gRPC into readable errors.
func Translate(err error) error {
	switch s := status.Convert(err); s.Code() {
	case codes.OK:
		return nil
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("%w: %s", ErrSilent, s.Message())
	case codes.Canceled:
		return context.Canceled
	default:
		return fmt.Errorf("guest agent: %s", s.Message())
	}
}
