package network_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/network"
)

// untaken is data that fits into the buffer of a connection.
var untaken = make([]byte, 100<<10)

// serveOnce serves one connection at an address of the outside.
func (w *world) serveOnce(address string, serve func(*net.TCPConn)) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	w.mu.Lock()
	w.services["tcp "+address] = l.Addr().String()
	w.mu.Unlock()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			serve(conn.(*net.TCPConn))
		}
	}()
}

// connect connects the guest to an address of the outside.
func (w *world) connect(address string) net.Conn {
	w.t.Helper()
	conn, err := w.guest.DialContext(w.ctx, "tcp", address)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) noEndpoints() {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.network.Endpoints() == 0 }, patience, 10*time.Millisecond)
}

// A guest cannot fill the memory of the runner with connections that it ends without taking their
// data.
func TestUntakenData(t *testing.T) {
	w := boot(t, nil, nil)
	w.network.Hasten(time.Second, time.Minute)
	halfClosed, proceed, served := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.serveOnce("140.82.121.4:443", func(conn *net.TCPConn) {
		defer close(served)
		_, _ = io.Copy(io.Discard, conn)
		close(halfClosed)
		<-proceed
		_, _ = conn.Write(untaken)
		_ = conn.Close()
	})
	conn := w.connect("140.82.121.4:443")
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	<-halfClosed
	w.guest.Close()
	close(proceed)
	<-served
	assert.Never(t, func() bool { return w.network.Connections() < w.network.Endpoints() }, 500*time.Millisecond, 10*time.Millisecond,
		"a connection with data must count against the limit")
	w.noEndpoints()
	require.Eventually(t, func() bool { return w.network.Connections() == 0 }, patience, 10*time.Millisecond)
}

// A guest that asks over TCP and never takes the answer.
func TestUntakenAnswer(t *testing.T) {
	w := boot(t, nil, nil)
	w.network.Hasten(100*time.Millisecond, time.Minute)
	var records []string
	for range 100 {
		records = append(records, `big.example. 60 IN TXT "`+strings.Repeat("x", 250)+`"`)
	}
	w.answer("big.example.", records...)
	conn := w.connect(netip.AddrPortFrom(network.Gateway, 53).String())
	question := new(dns.Msg)
	question.SetQuestion("big.example.", dns.TypeTXT)
	w.mu.Lock() // delays the answer
	require.NoError(t, (&dns.Conn{Conn: conn}).WriteMsg(question))
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	time.Sleep(200 * time.Millisecond)
	w.guest.Close()
	w.mu.Unlock()
	w.noEndpoints()
	assert.NotEmpty(t, w.asked)
}

// The part that a peer has received before its connection breaks does not look like the whole.
func TestBrokenConnections(t *testing.T) {
	w := boot(t, nil, nil)
	proceed := make(chan struct{})
	w.serveOnce("140.82.121.4:443", func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "part")
		<-proceed
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
	conn := w.connect("140.82.121.4:443")
	part := make([]byte, 4)
	_, err := io.ReadFull(conn, part)
	require.NoError(t, err)
	close(proceed)
	_, err = conn.Read(part)
	require.ErrorContains(t, err, "reset")

	result := make(chan error, 1)
	w.serveOnce("140.82.121.4:444", func(conn *net.TCPConn) {
		_, _ = conn.Write(make([]byte, 1024))
		_, err := io.Copy(io.Discard, conn)
		result <- err
	})
	conn = w.connect("140.82.121.4:444")
	_, err = io.WriteString(conn, "part")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, part)
	require.NoError(t, err)
	require.NoError(t, conn.Close()) // a reset, because not all was read
	select {
	case err := <-result:
		assert.ErrorContains(t, err, "reset")
	case <-time.After(patience):
		t.Fatal("the outside did not hear of the end")
	}
	w.noEndpoints()
}

// A connection of the host ends although the guest does not end its direction, and does not take
// what was sent.
func TestDialEnds(t *testing.T) {
	w := boot(t, nil, nil)
	w.network.Hasten(100*time.Millisecond, 200*time.Millisecond)
	l, err := w.guest.Listen(22)
	require.NoError(t, err)
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	conn, err := w.network.Dial(w.ctx, 22)
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	assert.False(t, errors.Is(err, io.EOF))
	w.noEndpoints()

	conn, err = w.network.Dial(w.ctx, 22)
	require.NoError(t, err)
	w.guest.Close()
	_, err = conn.Write(untaken)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	w.noEndpoints()

	ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
	defer cancel()
	_, err = w.network.Dial(ctx, 22)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	w.noEndpoints()
}
