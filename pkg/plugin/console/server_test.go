package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

// serve runs a server for the duration of the test, and returns what Run returns after stop.
func serve(t *testing.T, f *plugintest.Fixture, namespaces ...string) (s *Server, stop func() error) {
	t.Helper()
	s, err := NewServer(f.Clients, clock.RealClock{}, 0, namespaces...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(cancel)
	return s, func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return fmt.Errorf("the server does not end")
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(data)
}

// An eventStream reads server-sent events.
type eventStream struct {
	t    *testing.T
	body io.ReadCloser
	in   *bufio.Reader
}

func openStream(t *testing.T, url string) *eventStream {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	return &eventStream{t, resp.Body, bufio.NewReader(resp.Body)}
}

// next returns the next event.
func (e *eventStream) next() (event string, m Message) {
	e.t.Helper()
	for {
		line, err := e.in.ReadString('\n')
		require.NoError(e.t, err)
		if name, found := strings.CutPrefix(line, "event: "); found {
			event = strings.TrimSpace(name)
		}
		if data, found := strings.CutPrefix(line, "data: "); found {
			require.NoError(e.t, json.Unmarshal([]byte(data), &m))
			return event, m
		}
	}
}

func TestServer(t *testing.T) {
	f := plugintest.New(mac("mac-1", rackv1alpha1.MacNodeAvailable))
	s, stop := serve(t, f, "")
	assert.True(t, s.listener.Addr().(*net.TCPAddr).IP.IsLoopback())
	code, text := get(t, s.URL())
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, text, "<title>MacRack</title>")
	code, text = get(t, s.URL()+"app.js")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, text, "new EventSource('stream')")
	code, _ = get(t, strings.Replace(s.URL(), s.token, newToken(), 1))
	assert.Equal(t, http.StatusForbidden, code)
	code, _ = get(t, s.URL()+"no-such-file")
	assert.Equal(t, http.StatusNotFound, code)

	require.Eventually(t, func() bool { _, n := s.model.state(Macs); return n == 1 }, 10*time.Second, time.Millisecond)
	stream := openStream(t, s.URL()+"stream")
	event, all := stream.next()
	assert.Equal(t, "state", event)
	assert.Equal(t, "Available", phaseIn(t, all.Items[Macs]["mac-1"]))
	s.model.put(Macs, mac("mac-1", rackv1alpha1.MacNodeLeased))
	for {
		event, change := stream.next()
		assert.Equal(t, "change", event)
		if len(change.Items) > 0 {
			assert.Equal(t, "Leased", phaseIn(t, change.Items[Macs]["mac-1"]))
			break
		}
	}
	assert.NoError(t, stop(), "Ctrl-C is no failure, and ends open streams")
	_, _ = io.Copy(io.Discard, stream.in) // returns because the stream has ended
}

func TestPortInUse(t *testing.T) {
	f := plugintest.New()
	s, _ := serve(t, f, "")
	port := s.listener.Addr().(*net.TCPAddr).Port
	_, err := NewServer(f.Clients, f.Clock, port, "")
	assert.ErrorContains(t, err, fmt.Sprintf("failed to listen on port %d; use another --port", port))
}

// A page that does not read loses its stream, and gets all items when it comes back.
func TestSlowPage(t *testing.T) {
	m := newModel(clock.RealClock{})
	s := newStreams(m, clock.RealClock{})
	s.patience = 100 * time.Millisecond
	server := httptest.NewServer(s)
	defer server.Close()
	defer server.CloseClientConnections()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	readers := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.readers)
	}
	require.Eventually(t, func() bool { return readers() == 1 }, 10*time.Second, time.Millisecond)
	long := strings.Repeat("x", 1<<20)
	dropped := assert.Eventually(t, func() bool {
		long = long[1:] + "y"
		m.put(Macs, mac("mac-1", rackv1alpha1.MacNodePhase(long)))
		return readers() == 0
	}, 20*time.Second, 10*time.Millisecond)
	require.True(t, dropped, "the stream of a slow page stays open")
	assert.Empty(t, s.places, "its place is free")

	stream := openStream(t, server.URL)
	event, all := stream.next()
	assert.Equal(t, "state", event)
	assert.Equal(t, long, phaseIn(t, all.Items[Macs]["mac-1"]))
}

func TestTooManyPages(t *testing.T) {
	server := httptest.NewServer(newStreams(newModel(clock.RealClock{}), clock.RealClock{}))
	defer server.Close()
	defer server.CloseClientConnections()
	for range maxStreams {
		openStream(t, server.URL).next()
	}
	code, text := get(t, server.URL)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, text, "too many pages")
}
