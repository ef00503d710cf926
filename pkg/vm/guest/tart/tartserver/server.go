// Package tartserver serves the protocol of tart's guest agent in front of MacRack's own: for
// simulated guests and for tests.
package tartserver

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"macrack.io/macrack/pkg/vm/guest"
	tartv1 "macrack.io/macrack/pkg/vm/guest/tart/v1"
)

// chunk is the size of an output message of tart's agent, in bytes.
const chunk = 4096

// Server serves the protocol.
type Server struct {
	tartv1.UnimplementedAgentServer
	// Guest runs the commands.
	Guest guest.Agent
	// Shutdown replaces commands that would shut this host down.
	Shutdown func()
}

// Serve serves on l until ctx ends. The server has no options, as that of tart's agent.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer()
	tartv1.RegisterAgentServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err := server.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ResolveIP implements tartv1.AgentServer.
func (s *Server) ResolveIP(ctx context.Context, _ *tartv1.ResolveIPRequest) (*tartv1.ResolveIPResponse, error) {
	info, err := s.Guest.Info(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if len(info.Addresses) == 0 {
		return nil, errors.New("cannot resolve VM's IP address")
	}
	return &tartv1.ResolveIPResponse{Ip: info.Addresses[0].String()}, nil
}

// Exec implements tartv1.AgentServer.
func (s *Server) Exec(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	command := first.GetCommand()
	if command == nil {
		return errors.New("first exec request should describe a command to execute")
	}
	args := append([]string{command.GetName()}, command.GetArgs()...)
	if slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "/sbin/shutdown") }) {
		s.Shutdown()
		return stream.Send(exit(0))
	}
	out := &outputs{stream: stream}
	run := guest.Command{Args: args, TTY: command.GetTty(), Stdout: out.stdout(), Stderr: out.stderr()}
	in := receiver{stream: stream, resize: make(chan guest.Size)}
	if command.GetInteractive() {
		var read *io.PipeReader
		read, in.stdin = io.Pipe()
		defer func() { _ = read.Close() }()
		run.Stdin = read
	}
	if command.GetTty() {
		run.Resize = in.resize
	}
	go in.run()
	code, err := s.Guest.Exec(stream.Context(), run)
	if err != nil {
		return err
	}
	return stream.Send(exit(code))
}

func exit(code int) *tartv1.ExecResponse {
	return &tartv1.ExecResponse{Type: &tartv1.ExecResponse_Exit_{Exit: &tartv1.ExecResponse_Exit{Code: int32(code)}}}
}

// receiver passes the input of a call to a command.
type receiver struct {
	stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]
	stdin  *io.PipeWriter // nil without input
	resize chan guest.Size
}

func (r receiver) run() {
	for {
		request, err := r.stream.Recv()
		if err != nil {
			return
		}
		switch kind := request.GetType().(type) {
		case *tartv1.ExecRequest_StandardInput:
			if r.stdin == nil {
				continue
			}
			if len(kind.StandardInput.GetData()) == 0 {
				_ = r.stdin.Close()
			} else if _, err := r.stdin.Write(kind.StandardInput.GetData()); err != nil {
				return
			}
		case *tartv1.ExecRequest_TerminalResize:
			select {
			case r.resize <- guest.Size{Columns: uint16(kind.TerminalResize.GetCols()), Rows: uint16(kind.TerminalResize.GetRows())}:
			case <-r.stream.Context().Done():
				return
			}
		}
	}
}

// outputs serializes the output of a command.
type outputs struct {
	mu     sync.Mutex
	stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]
}

type output func([]byte) error

func (o output) Write(data []byte) (int, error) {
	for part := range slices.Chunk(data, chunk) {
		if err := o(part); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

func (o *outputs) send(response *tartv1.ExecResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(response)
}

func (o *outputs) stdout() output {
	return func(data []byte) error {
		return o.send(&tartv1.ExecResponse{Type: &tartv1.ExecResponse_StandardOutput{StandardOutput: &tartv1.IOChunk{Data: data}}})
	}
}

func (o *outputs) stderr() output {
	return func(data []byte) error {
		return o.send(&tartv1.ExecResponse{Type: &tartv1.ExecResponse_StandardError{StandardError: &tartv1.IOChunk{Data: data}}})
	}
}
