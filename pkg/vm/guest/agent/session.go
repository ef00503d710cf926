package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/guest"
)

const (
	// sessionSocketName is the socket of the agent in the login session, in the user's home. The
	// system agent is root and can connect to it.
	sessionSocketName = ".macrack-session.sock"
	// sessionDialTimeout bounds a connection inside the guest.
	sessionDialTimeout = time.Second
	// sessionPoll is the interval at which an expected session is looked for.
	sessionPoll = 200 * time.Millisecond
)

// Session is the agent in the login session of a user, as the system agent sees it. Commands run
// there, because only a login session has the login keychain, windows and simulators.
type Session struct {
	// Socket is the socket of the agent in the session.
	Socket string
	// Port is its vsock port.
	Port uint32
	// Patience is how long after the start of the system agent a session is expected; 0 if the
	// image has no automatic login.
	Patience time.Duration

	clock clock.Clock
	until time.Time

	mu   sync.Mutex
	seen bool
}

// SessionSocket returns the socket of the agent in the login session of the shell's user.
func (s *Shell) SessionSocket() string { return filepath.Join(s.Home, sessionSocketName) }

func (s *Session) begin(c clock.Clock) {
	s.clock, s.until = c, c.Now().Add(s.Patience)
}

// present reports whether the agent in the session listens.
func (s *Session) present(ctx context.Context) bool {
	conn, err := s.dial(ctx)
	if err != nil {
		return false
	}
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = true
	return true
}

func (s *Session) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{Timeout: sessionDialTimeout}).DialContext(ctx, "unix", s.Socket)
}

// pending reports whether the first session since the boot is still expected.
func (s *Session) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.seen && s.clock.Now().Before(s.until)
}

// await waits for an expected session and reports whether there is one.
func (s *Session) await(ctx context.Context) bool {
	for {
		if s.present(ctx) {
			return true
		}
		if !s.pending() {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.clock.After(sessionPoll):
		}
	}
}

var errSessionEnded = errors.New("the login session ended while the script ran")

// run runs a command in the session.
func (s *Session) run(ctx context.Context, args, environment []string, output io.Writer) (int32, error) {
	client, err := guest.NewClient(s.dial)
	if err != nil {
		return notEnded, err
	}
	defer client.Close()
	code, err := client.Exec(ctx, guest.Command{Args: args, Environment: environment, Stdout: output, Stderr: output})
	if errors.Is(err, guest.ErrLost) {
		err = errSessionEnded
	}
	if err != nil {
		return notEnded, err
	}
	return int32(code), nil
}

// listenInSession listens on the socket of the session for the system agent. The socket of an
// earlier session is replaced.
func listenInSession(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return listenUnix(path)
}
