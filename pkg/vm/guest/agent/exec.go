package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/creack/pty"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

// chunk bounds an output message, in bytes.
const chunk = 32 << 10

// Exec implements guestv1.GuestServer.
func (a *Agent) Exec(stream guestv1.Guest_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if len(start.GetCommand()) == 0 {
		return status.Error(codes.InvalidArgument, "no command was given")
	}
	if a.config.Shell == nil {
		return status.Error(codes.Unimplemented, "this guest runs no commands")
	}
	leave, err := a.enter()
	if err != nil {
		return err
	}
	defer leave()

	// ctx ends with the call and with this function.
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	cmd := a.config.Shell.command(ctx, start.GetCommand())
	cmd.Env = append(slices.Clip(cmd.Env), environment(start.GetEnvironment())...)
	s := &session{stream: stream}
	run := s.withPipes
	if start.GetTty() {
		run = s.withTerminal
	}
	err = run(cmd, start)
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case cmd.Process == nil:
		return status.Errorf(codes.NotFound, "the command did not start: %v", err)
	}
	code, err := exitCode(cmd, err)
	if err != nil {
		return status.Errorf(codes.Internal, "the command's exit code is unknown: %v", err)
	}
	return s.send(&guestv1.ExecResponse{Kind: &guestv1.ExecResponse_ExitCode{ExitCode: code}})
}

// session is one command and its streams.
type session struct {
	stream guestv1.Guest_ExecServer
	mu     sync.Mutex // serializes sends
}

func (s *session) send(response *guestv1.ExecResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(response)
}

// output is the command's stdout or stderr.
type output struct {
	session *session
	wrap    func([]byte) *guestv1.ExecResponse
}

func (o output) Write(data []byte) (int, error) {
	for sent := 0; sent < len(data); sent += chunk {
		if err := o.session.send(o.wrap(data[sent:min(sent+chunk, len(data))])); err != nil {
			return sent, err
		}
	}
	return len(data), nil
}

func (s *session) stdout() output {
	return output{s, func(data []byte) *guestv1.ExecResponse {
		return &guestv1.ExecResponse{Kind: &guestv1.ExecResponse_Stdout{Stdout: data}}
	}}
}

func (s *session) stderr() output {
	return output{s, func(data []byte) *guestv1.ExecResponse {
		return &guestv1.ExecResponse{Kind: &guestv1.ExecResponse_Stderr{Stderr: data}}
	}}
}

// receive forwards the host's messages until the call ends.
func (s *session) receive(stdin func([]byte), closed func(), resize func(*guestv1.TerminalSize)) {
	for {
		request, err := s.stream.Recv()
		if err != nil {
			return
		}
		switch kind := request.GetKind().(type) {
		case *guestv1.ExecRequest_Stdin:
			stdin(kind.Stdin)
		case *guestv1.ExecRequest_StdinClosed:
			closed()
		case *guestv1.ExecRequest_Resize:
			resize(kind.Resize)
		}
	}
}

func (s *session) withPipes(cmd *exec.Cmd, start *guestv1.ExecStart) error {
	cmd.Stdout, cmd.Stderr = s.stdout(), s.stderr()
	if !start.GetStdin() {
		return cmd.Run()
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// A command need not read its input: writes fail once it has exited.
	go s.receive(func(data []byte) { _, _ = stdin.Write(data) }, func() { _ = stdin.Close() }, func(*guestv1.TerminalSize) {})
	return cmd.Wait()
}

// endOfTransmission ends the input of programs that read lines from a terminal.
const endOfTransmission = 4

func (s *session) withTerminal(cmd *exec.Cmd, start *guestv1.ExecStart) error {
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], "TERM=xterm-256color")
	attributes := cmd.SysProcAttr
	attributes.Setctty = true
	terminal, err := pty.StartWithAttrs(cmd, windowSize(start.GetSize()), attributes)
	if err != nil {
		return err
	}
	defer terminal.Close()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = io.Copy(s.stdout(), terminal) // returns an error once the other side is closed
	}()
	go s.receive(
		func(data []byte) { _, _ = terminal.Write(data) },
		func() { _, _ = terminal.Write([]byte{endOfTransmission}) },
		func(size *guestv1.TerminalSize) { _ = pty.Setsize(terminal, windowSize(size)) },
	)
	err = cmd.Wait()
	select {
	case <-shown:
	case <-time.After(drain):
	}
	return err
}

func windowSize(size *guestv1.TerminalSize) *pty.Winsize {
	if size.GetColumns() == 0 || size.GetRows() == 0 {
		return &pty.Winsize{Cols: 80, Rows: 24}
	}
	return &pty.Winsize{Cols: uint16(min(size.GetColumns(), 1<<15)), Rows: uint16(min(size.GetRows(), 1<<15))}
}

func dialLoopback(ctx context.Context, port uint32) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	text := strconv.Itoa(int(port))
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", text))
	if err == nil {
		return conn, nil
	}
	if conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("::1", text)); err == nil {
		return conn, nil
	}
	return nil, err
}

// Forward implements guestv1.GuestServer.
func (a *Agent) Forward(stream guestv1.Guest_ForwardServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	port := first.GetPort()
	if port == 0 || port > 65535 {
		return status.Errorf(codes.InvalidArgument, "port %d is invalid; use a port from 1 to 65535", port)
	}
	if a.config.Shell == nil {
		return status.Error(codes.Unimplemented, "this guest has no ports")
	}
	leave, err := a.enter()
	if err != nil {
		return err
	}
	defer leave()
	conn, err := dialLoopback(stream.Context(), port)
	if err != nil {
		return status.Errorf(codes.NotFound, "port %d of the guest: %v", port, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(stream.Context(), func() { _ = conn.Close() })
	defer stop()
	if err := stream.Send(&guestv1.ForwardResponse{Kind: &guestv1.ForwardResponse_Connected{Connected: true}}); err != nil {
		return err
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			request, err := stream.Recv()
			if err != nil || request.GetClosed() {
				_ = conn.(*net.TCPConn).CloseWrite()
				return
			}
			if _, err := conn.Write(request.GetData()); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, chunk)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := stream.Send(&guestv1.ForwardResponse{Kind: &guestv1.ForwardResponse_Data{Data: buffer[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return status.FromContextError(stream.Context().Err()).Err()
		}
		if err != nil {
			return status.Errorf(codes.Aborted, "port %d of the guest: %v", port, err)
		}
	}
	if err := stream.Send(&guestv1.ForwardResponse{Kind: &guestv1.ForwardResponse_Closed{Closed: true}}); err != nil {
		return err
	}
	<-received // the host may have more to send
	return nil
}
