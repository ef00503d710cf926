package cluster

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// backend sends its name to each client, then echoes.
func backend(t *testing.T, name string) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, name)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l
}

// ask connects, sends a word, closes its half, and returns the whole answer.
func ask(t *testing.T, addr string) string {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, " hello")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(answer)
}

func TestBalance(t *testing.T) {
	one, two := backend(t, "one"), backend(t, "two")
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var down sync.Map // address -> is not ready
	ready := func(_ context.Context, addr string) error {
		if _, ok := down.Load(addr); ok {
			return assert.AnError
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Balance(ctx, front, []string{one.Addr().String(), two.Addr().String()}, ready) }()

	answers := map[string]int{}
	for range 10 {
		answers[ask(t, front.Addr().String())]++
	}
	assert.Equal(t, map[string]int{"one hello": 5, "two hello": 5}, answers)

	// A replica that accepts connections but is not ready gets none until it is ready.
	down.Store(two.Addr().String(), true)
	eventually(t, front, "one hello", "one hello", "one hello", "one hello")
	down.Delete(two.Addr().String())
	eventually(t, front, "one hello", "two hello")

	one.Close()
	for range 4 {
		assert.Equal(t, "two hello", ask(t, front.Addr().String()), "a dead backend is skipped at once")
	}
	two.Close()
	conn, err := net.Dial("tcp", front.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	answer, _ := io.ReadAll(conn)
	assert.Empty(t, answer, "no backend is left")

	cancel()
	assert.NoError(t, <-done)
	_, err = net.Dial("tcp", front.Addr().String())
	assert.Error(t, err)
}

// eventually waits until several connections in a row are answered like this, in any order.
func eventually(t *testing.T, front net.Listener, want ...string) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		var got []string
		for range want {
			got = append(got, ask(t, front.Addr().String()))
		}
		assert.ElementsMatch(collect, want, got)
	}, 2*time.Minute, 50*time.Millisecond)
}
