package runner

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

// wordyGuest responds, and refuses its setup with an endless message.
type wordyGuest struct {
	guestv1.UnimplementedGuestServer
	text string
}

func (g *wordyGuest) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	return &guestv1.InfoResponse{}, nil
}

func (g *wordyGuest) Setup(*guestv1.SetupRequest, grpc.ServerStreamingServer[guestv1.SetupResponse]) error {
	return status.Error(codes.Internal, g.text)
}

func TestGuestDoesNotFillTheLog(t *testing.T) {
	log := captureLog(t)
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	guestv1.RegisterGuestServer(server, &wordyGuest{text: strings.Repeat("no\nE0101 forged\x1b[31mé", 500)})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	client, err := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return listener.DialContext(ctx) })
	require.NoError(t, err)
	defer client.Close()

	fake := clocktesting.NewFakeClock(time.Now())
	console, err := OpenConsole(filepath.Join(t.TempDir(), "console"), fake)
	require.NoError(t, err)
	defer console.Close()
	agents := &agents{clock: fake, clients: []guest.Agent{client}, known: make(chan struct{})}
	agents.choose(0)
	r := &runner{clock: fake, spec: &contract.Spec{InstanceUID: "u"}, console: console, agents: agents, guestLog: newGuestLog(fake, "u")}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.setUp(ctx)
	}()
	refused := func() {
		require.Eventually(t, fake.HasWaiters, 30*time.Second, time.Millisecond)
	}
	for range 30 {
		refused()
		fake.Step(retryPause)
	}
	refused()
	lines := strings.Split(strings.TrimSuffix(log(), "\n"), "\n")
	require.Len(t, lines, 1, "one entry, of one line")
	assert.Less(t, len(lines[0]), 2*maxGuestText+200)
	assert.Contains(t, lines[0], "guest agent: no?E0101 forged?[31m")

	fake.Step(guestLogPause)
	refused()
	cancel()
	<-done
	lines = strings.Split(strings.TrimSuffix(log(), "\n"), "\n")
	require.Len(t, lines, 2)
	assert.Contains(t, lines[1], "notLogged=30")
}

func TestGuestText(t *testing.T) {
	assert.Equal(t, "as it is: é", guestText("as it is: é"))
	for cut := range 4 {
		text := guestText(strings.Repeat("x", cut) + strings.Repeat("é\xff\u202e", 1000))
		assert.True(t, utf8.ValidString(text))
		assert.LessOrEqual(t, len(text), maxGuestText+len("..."))
	}
}

func TestEachTroubleHasItsOwnPause(t *testing.T) {
	log := captureLog(t)
	l := newGuestLog(clocktesting.NewFakePassiveClock(time.Now()), "u")
	for range 3 {
		l.trouble("one", errors.New("x"))
		l.trouble("other", errors.New("x"))
	}
	assert.Equal(t, 2, strings.Count(log(), "\n"))
}

// captureLog returns the text logged until the test ends.
func captureLog(t *testing.T) func() string {
	t.Helper()
	state := klog.CaptureState()
	t.Cleanup(state.Restore)
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	require.NoError(t, flags.Set("logtostderr", "false"))
	require.NoError(t, flags.Set("stderrthreshold", "FATAL"))
	out := &lockedBuffer{}
	klog.SetOutput(out)
	return func() string {
		klog.Flush()
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.String()
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}
