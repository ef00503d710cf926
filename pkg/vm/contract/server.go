package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// Paths of the runner's API, all under the unix socket.
const (
	PathState = "/v1/state" // GET: State
	PathWatch = "/v1/watch" // GET: JSON lines of State, the current one first
	PathStop  = "/v1/stop"  // POST StopRequest: 202 and State
	PathKill  = "/v1/kill"  // POST: 202 and State
	// PathEnvironment takes the environment of the startup script. PUT a list of
	// EnvironmentVariable: 202 and State.
	PathEnvironment = "/v1/environment"
	// PathConnect connects the caller to a vsock port of the guest. A POST with the query
	// port=NUMBER that upgrades to UpgradeVsock gets a 101 response; the connection then carries
	// the guest's data.
	PathConnect = "/v1/connect"
	// PathDial connects the caller to a TCP port of an isolated guest, as PathConnect does. It
	// upgrades to UpgradeTCP.
	PathDial = "/v1/dial"
)

// UpgradeVsock is the protocol that PathConnect upgrades to, and UpgradeTCP that of PathDial.
const (
	UpgradeVsock = "macrack-vsock"
	UpgradeTCP   = "macrack-tcp"
)

// ConnectTimeout bounds a connection attempt to a port of the guest.
const ConnectTimeout = 5 * time.Second

// MaxConnections is the limit of concurrent connections to the guest.
const MaxConnections = 64

// Runner is the runner behind the API.
type Runner interface {
	// State returns the current state.
	State() State
	// Watch calls send with the current state and then with each change. It returns when ctx ends,
	// send fails, or the VM has stopped; the state VMStopped is sent last.
	Watch(ctx context.Context, send func(State) error) error
	// Stop asks the guest to shut down and forces the VM off after grace. A second call may shorten
	// the grace period but not extend it.
	Stop(grace time.Duration)
	// Kill forces the VM off at once.
	Kill()
	// SetEnvironment sets the environment of the startup script, unless it is set already.
	SetEnvironment(environment []EnvironmentVariable)
	// Connect connects to a vsock port of the guest. ctx bounds the attempt. The connection ends
	// with the VM.
	Connect(ctx context.Context, port uint32) (net.Conn, error)
	// Dial connects to a TCP port of an isolated guest, as Connect does.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}

// Listen creates the runner's socket with mode 0600 and replaces that of a dead runner. The socket
// serves only this process' user and root. Only the slot's owner may call Listen.
func (d SlotDir) Listen() (net.Listener, error) {
	path := d.SocketPath()
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, and the limit is %d; use a shorter state directory", path, len(path), MaxSocketPath)
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return ownListener{l}, nil
}

// NewHandler serves r.
func NewHandler(r Runner) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathState, func(w http.ResponseWriter, _ *http.Request) {
		writeState(w, http.StatusOK, r.State())
	})
	mux.HandleFunc("GET "+PathWatch, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/jsonl")
		flush := http.NewResponseController(w)
		encoder := json.NewEncoder(w)
		_ = r.Watch(req.Context(), func(s State) error {
			if err := encoder.Encode(s); err != nil {
				return err
			}
			return flush.Flush()
		})
	})
	mux.HandleFunc("POST "+PathStop, func(w http.ResponseWriter, req *http.Request) {
		var body StopRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<10)).Decode(&body); err != nil {
			http.Error(w, fmt.Sprintf("invalid stop request: %v", err), http.StatusBadRequest)
			return
		}
		if maximum := int64(MaxGrace / time.Second); body.GraceSeconds < 0 || body.GraceSeconds > maximum {
			http.Error(w, fmt.Sprintf("invalid graceSeconds %d; use 0 to %d", body.GraceSeconds, maximum), http.StatusBadRequest)
			return
		}
		r.Stop(time.Duration(body.GraceSeconds) * time.Second)
		writeState(w, http.StatusAccepted, r.State())
	})
	limit := &connectionLimit{tokens: make(chan struct{}, MaxConnections)}
	mux.HandleFunc("POST "+PathConnect, limit.wrap(func(w http.ResponseWriter, req *http.Request) {
		connect(w, req, UpgradeVsock, 32, func(ctx context.Context, port uint64) (net.Conn, error) { return r.Connect(ctx, uint32(port)) })
	}))
	mux.HandleFunc("POST "+PathDial, limit.wrap(func(w http.ResponseWriter, req *http.Request) {
		connect(w, req, UpgradeTCP, 16, func(ctx context.Context, port uint64) (net.Conn, error) { return r.Dial(ctx, uint16(port)) })
	}))
	mux.HandleFunc("PUT "+PathEnvironment, func(w http.ResponseWriter, req *http.Request) { serveEnvironment(w, req, r) })
	mux.HandleFunc("POST "+PathKill, func(w http.ResponseWriter, _ *http.Request) {
		r.Kill()
		writeState(w, http.StatusAccepted, r.State())
	})
	return mux
}

// connectionLimit limits the connections to the guest.
type connectionLimit struct{ tokens chan struct{} }

func (l *connectionLimit) wrap(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		select {
		case l.tokens <- struct{}{}:
			defer func() { <-l.tokens }()
		default:
			http.Error(w, fmt.Sprintf("the guest already has %d connections, which is the limit", MaxConnections), http.StatusServiceUnavailable)
			return
		}
		next(w, req)
	}
}

// connect connects the caller to a port of the guest. The port has a number of bits.
func connect(w http.ResponseWriter, req *http.Request, upgrade string, bits int, open func(context.Context, uint64) (net.Conn, error)) {
	port, err := strconv.ParseUint(req.URL.Query().Get("port"), 10, bits)
	if err != nil || port == 0 {
		http.Error(w, fmt.Sprintf("invalid port %q", req.URL.Query().Get("port")), http.StatusBadRequest)
		return
	}
	if req.Header.Get("Upgrade") != upgrade {
		http.Error(w, "upgrade to "+upgrade, http.StatusUpgradeRequired)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), ConnectTimeout)
	guest, err := open(ctx, port)
	cancel()
	if err != nil {
		http.Error(w, fmt.Sprintf("port %d of the guest: %v", port, err), http.StatusBadGateway)
		return
	}
	defer guest.Close()
	caller, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer caller.Close()
	if _, err := fmt.Fprintf(caller, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade); err != nil {
		return
	}
	join(guest, caller, buffered)
}

// halfCloser is a connection whose directions end separately.
type halfCloser interface{ CloseWrite() error }

// join copies data in both directions until either ends. If the guest's connection can end one
// direction, the other one continues. buffered holds the data that the caller sent with its
// request.
func join(guest, caller net.Conn, buffered io.Reader) {
	_, halves := guest.(halfCloser)
	pipe := func(to net.Conn, from io.Reader) {
		_, err := io.Copy(to, from)
		if half, ok := to.(halfCloser); halves && ok && err == nil && half.CloseWrite() == nil {
			return
		}
		_ = guest.Close()
		_ = caller.Close()
	}
	var pipes sync.WaitGroup
	pipes.Go(func() { pipe(guest, buffered) })
	pipes.Go(func() { pipe(caller, guest) })
	pipes.Wait()
}

func writeState(w http.ResponseWriter, code int, s State) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(s)
}
