package tart

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	tartv1 "macrack.io/macrack/pkg/vm/guest/tart/v1"
)

// faultyGuest is a guest that its tenant has modified. Each function replaces an answer.
type faultyGuest struct {
	tartv1.UnimplementedAgentServer
	ip   func(context.Context) (string, error)
	exec func(grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error
}

func (f *faultyGuest) ResolveIP(ctx context.Context, _ *tartv1.ResolveIPRequest) (*tartv1.ResolveIPResponse, error) {
	if f.ip == nil {
		return &tartv1.ResolveIPResponse{Ip: "192.168.64.7"}, nil
	}
	ip, err := f.ip(ctx)
	return &tartv1.ResolveIPResponse{Ip: ip}, err
}

func (f *faultyGuest) Exec(stream grpc.BidiStreamingServer[tartv1.ExecRequest, tartv1.ExecResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return f.exec(stream)
}

func serve(t *testing.T, f *faultyGuest) (*Client, *grpc.Server) {
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	tartv1.RegisterAgentServer(server, f)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return client(t, l), server
}

func stdout(data []byte) *tartv1.ExecResponse {
	return &tartv1.ExecResponse{Type: &tartv1.ExecResponse_StandardOutput{StandardOutput: &tartv1.IOChunk{Data: data}}}
}

func stderr(text string) *tartv1.ExecResponse {
	return &tartv1.ExecResponse{Type: &tartv1.ExecResponse_StandardError{StandardError: &tartv1.IOChunk{Data: []byte(text)}}}
}

func exit(code int32) *tartv1.ExecResponse {
	return &tartv1.ExecResponse{Type: &tartv1.ExecResponse_Exit_{Exit: &tartv1.ExecResponse_Exit{Code: code}}}
}
