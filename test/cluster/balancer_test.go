package cluster

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// backend says its name to whoever connects, then echoes.
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

// ask connects, sends a word, closes its half, and returns all that came back.
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
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Balance(ctx, front, []string{one.Addr().String(), two.Addr().String()}) }()

	answers := map[string]int{}
	for range 10 {
		answers[ask(t, front.Addr().String())]++
	}
	assert.Equal(t, map[string]int{"one hello": 5, "two hello": 5}, answers)

	one.Close()
	for range 4 {
		assert.Equal(t, "two hello", ask(t, front.Addr().String()), "a dead backend is skipped")
	}

	open, err := net.Dial("tcp", front.Addr().String())
	require.NoError(t, err)
	defer open.Close()
	cancel()
	assert.NoError(t, <-done)
	_, err = io.ReadAll(open)
	_ = err // reset or end, either says that the connection is closed
	_, err = net.Dial("tcp", front.Addr().String())
	assert.Error(t, err)
}
