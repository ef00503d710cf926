// Package console is the web page of kubectl macrack ui: the Macs, leases, queues and reports that
// the user may see, in the browser. It is served on the loopback interface.
package console

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/plugin/cmdutil"
)

//go:embed page
var page embed.FS

// A Server serves the console to the browser of one user.
type Server struct {
	clients  *cmdutil.Clients
	clock    clock.WithTicker
	model    *model
	sources  []*source
	listener net.Listener
	token    string
	// namespaces are those of tenants' objects, in the order in which they are tried.
	namespaces []string
}

// NewServer returns a server on a port of the loopback interface; 0 selects a free port. Tenants'
// objects come from the first of the namespaces that the user may list; "" means all.
func NewServer(c *cmdutil.Clients, clock clock.WithTicker, port int, namespaces ...string) (*Server, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("failed to listen on port %d; use another --port: %w", port, err)
	}
	m := newModel(clock)
	return &Server{
		clients: c, clock: clock, model: m, sources: newSources(c, namespaces, m, clock), listener: listener, token: newToken(), namespaces: namespaces,
	}, nil
}

// URL returns the address of the page. It has the token.
func (s *Server) URL() string { return fmt.Sprintf("http://%s/%s/", s.listener.Addr(), s.token) }

func (s *Server) handler() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the path is constant
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.Handle("/stream", newStreams(s.model, s.clock))
	mux.HandleFunc("/mac", s.serveMac)
	mux.HandleFunc("/compliance", s.serveCompliance)
	mux.HandleFunc("/usage", s.serveUsage)
	port := s.listener.Addr().(*net.TCPAddr).Port
	return newGuard(s.token, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("localhost:%d", port)).protect(mux)
}

const headerTimeout = 5 * time.Second

// Run serves the page until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, source := range s.sources {
		wg.Go(func() { source.run(ctx) })
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.Serve(s.listener)
	cancel()
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
