package runner

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
)

// stubborn is a hypervisor that connects slowly and ignores the context.
type stubborn struct {
	Machine
	asked   atomic.Int32
	answers chan net.Conn
}

func (s *stubborn) Connect(context.Context, uint32) (net.Conn, error) {
	s.asked.Add(1)
	return <-s.answers, nil
}

func TestConnectIsBounded(t *testing.T) {
	machine := &stubborn{answers: make(chan net.Conn)}
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	c := newConnector(machine, clk)
	try := func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		return c.connect(ctx, 1)
	}
	for range 10 {
		_, err := try()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	assert.EqualValues(t, 1, machine.asked.Load(), "those that do not answer do not pile up")
	clk.Step(staleConnect)
	_, err := try()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.EqualValues(t, 2, machine.asked.Load(), "one that never answers is not the last one")

	// A late connection serves the next caller; a connection without a caller is closed.
	local, remote := net.Pipe()
	go func() {
		for !c.waitedFor(1) {
			time.Sleep(time.Millisecond)
		}
		machine.answers <- local
	}()
	conn, err := c.connect(context.Background(), 1)
	require.NoError(t, err)
	unwanted, other := net.Pipe()
	machine.answers <- unwanted
	require.NoError(t, other.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = other.Read(make([]byte, 1))
	require.ErrorContains(t, err, "EOF")

	// All connections end with the VM.
	c.Close()
	_, err = remote.Read(make([]byte, 1))
	require.ErrorContains(t, err, "EOF")
	require.NoError(t, conn.Close())
	_, err = c.connect(context.Background(), 1)
	require.ErrorIs(t, err, errEnded)
	assert.Empty(t, c.open)
}

func (c *connector) waitedFor(port uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[port] != nil && c.ports[port].waiters > 0
}

type refusing struct{ Machine }

func (refusing) Connect(context.Context, uint32) (net.Conn, error) {
	return nil, errors.New("connection refused")
}

func TestConnectIsRefused(t *testing.T) {
	c := newConnector(refusing{}, clocktesting.NewFakeClock(time.Unix(1e9, 0)))
	defer c.Close()
	for range 3 {
		_, err := c.connect(context.Background(), 1)
		require.ErrorContains(t, err, "connection refused")
	}
	assert.Empty(t, c.ports)
}

func TestConsole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 5))
	c, err := OpenConsole(path, clk)
	require.NoError(t, err)
	_, _ = c.Write([]byte("one\r\ntw"))
	clk.Step(time.Second)
	_, _ = c.Write([]byte("o\n\n"))
	_, _ = c.Write([]byte("not ended"))
	c.Printf("own %d", 1)
	c.Close()
	c.Printf("after the end")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, `2001-09-09T01:46:40.000000005Z one
2001-09-09T01:46:41.000000005Z two
2001-09-09T01:46:41.000000005Z `+`
2001-09-09T01:46:41.000000005Z not ended
2001-09-09T01:46:41.000000005Z own 1
`, string(data))
	at, text := contract.CutConsoleTime([]byte(strings.SplitAfter(string(data), "\n")[1]))
	assert.Equal(t, "two\n", string(text))
	assert.EqualValues(t, 1e9+1, at.Unix())
}

func TestConsoleIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	c, err := OpenConsole(path, clocktesting.NewFakeClock(time.Unix(1e9, 0)))
	require.NoError(t, err)
	defer c.Close()
	block := []byte(strings.Repeat("x", 1<<20)) // one line without end
	for range 20 {
		_, _ = c.Write(block)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.LessOrEqual(t, info.Size(), int64(maxConsole))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(data), "is full"))
	assert.Less(t, len(c.partial), maxLine)
}

func TestTail(t *testing.T) {
	var short tail
	assert.True(t, short.take([]byte("hello\xff\n")))
	assert.Equal(t, "hello\uFFFD\n", short.text(), "an API object holds no other text")
	var long tail
	for range 3000 {
		long.take([]byte("€€€"))
	}
	assert.LessOrEqual(t, len(long.text()), contract.MaxScriptOutput)
	assert.True(t, strings.HasSuffix(long.text(), "€€€"))
	assert.False(t, long.take(make([]byte, 2<<20)), "more than a guest should send")
}
