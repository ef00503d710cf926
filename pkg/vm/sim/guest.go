package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest/agent"
)

const (
	// guestDir is the simulated disk of a guest in the slot's directory: home and state.
	guestDir = "guest"
	homeDir  = "home"
	// restartPause is the pause before a crashed guest agent is restarted.
	restartPause = 200 * time.Millisecond
	// guestVersion is the version of a modeled guest agent.
	guestVersion = "simulated"
)

// model is a guest agent in this process. It runs no commands.
type model struct {
	config agent.Config

	frozen hangGate

	mu       sync.Mutex
	listener *bufconn.Listener // nil when the guest is down
	stop     context.CancelFunc
	served   chan struct{}
}

func newModel(dir contract.SlotDir, address string, behaviour *contract.Simulation, shutdown func()) (*model, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	return &model{config: agent.Config{
		Version:  guestVersion,
		StateDir: filepath.Join(string(dir), guestDir),
		Script: func(_ context.Context, _ string, environment []string, output func([]byte)) int32 {
			output([]byte("simulated: the script was not run\n"))
			if len(environment) > 0 {
				output(fmt.Appendf(nil, "simulated: it has %d environment variables\n", len(environment)))
			}
			return behaviour.ScriptExitCode
		},
		Caches:    &agent.Caches{Dir: "/simulated/macrack-caches"},
		Shutdown:  shutdown,
		Addresses: func() ([]netip.Addr, error) { return []netip.Addr{ip}, nil },
		Clock:     clock.RealClock{},
	}}, nil
}

func (g *model) boot() error {
	a, err := agent.New(g.config)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var ctx context.Context
	ctx, g.stop = context.WithCancel(context.Background())
	g.listener, g.served = bufconn.Listen(64<<10), make(chan struct{})
	go func(l net.Listener, served chan struct{}) {
		defer close(served)
		if err := a.Serve(ctx, l); err != nil {
			klog.ErrorS(err, "Simulated guest agent")
		}
	}(g.listener, g.served)
	return nil
}

func (g *model) halt() {
	g.mu.Lock()
	listener, stop, served := g.listener, g.stop, g.served
	g.listener = nil
	g.mu.Unlock()
	g.frozen.set(false)
	if listener != nil {
		stop()
		<-served
	}
}

func (g *model) kill() {
	g.halt()
	if err := g.boot(); err != nil {
		klog.ErrorS(err, "Simulated guest agent")
	}
}

func (g *model) freeze(frozen bool) { g.frozen.set(frozen) }

func (g *model) connect(ctx context.Context) (net.Conn, error) {
	if !g.frozen.pass(ctx) {
		return nil, ctx.Err()
	}
	g.mu.Lock()
	listener := g.listener
	g.mu.Unlock()
	if listener == nil {
		return nil, errDown
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &freezable{Conn: conn, frozen: &g.frozen}, nil
}

// freezable is a connection to a guest that can be frozen.
type freezable struct {
	net.Conn
	frozen *hangGate
}

func (f *freezable) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.frozen.pass(context.Background())
	return n, err
}

var errDown = errors.New("the guest is down")

// process is a guest agent that is a process of the host.
type process struct {
	command  []string
	dir      string
	socket   string
	shutdown func()

	mu      sync.Mutex
	running *exec.Cmd // nil when the guest is down
	stdin   io.Closer
	up      bool
	ended   sync.WaitGroup
}

// guestSocket and sessionSocket are the sockets of the processes in the slot's directory.
const (
	guestSocket   = "guest.sock"
	sessionSocket = "session.sock"
	// sessionPatience is how long a simulated guest with a login session waits for it.
	sessionPatience = time.Minute
)

func newProcess(command []string, spec *contract.Spec, dir contract.SlotDir, address string, behaviour *contract.Simulation, shutdown func()) (*process, error) {
	g, err := newAgentProcess(command, spec, dir, guestSocket, shutdown)
	if err != nil {
		return nil, err
	}
	g.command = append(g.command, "--addresses="+address)
	if behaviour.LoginMillis > 0 {
		g.command = append(g.command, "--session-patience="+sessionPatience.String())
	}
	if behaviour.IgnoreShutdown {
		g.command = append(g.command, "--shutdown-command=true")
	} else {
		g.command = append(g.command, "--shutdown-command=")
	}
	return g, nil
}

// newSession returns the guest agent in the login session of a guest.
func newSession(command []string, spec *contract.Spec, dir contract.SlotDir) (*process, error) {
	g, err := newAgentProcess(command, spec, dir, sessionSocket, func() {})
	if err != nil {
		return nil, err
	}
	g.command = append(g.command, "--session")
	return g, nil
}

func newAgentProcess(command []string, spec *contract.Spec, dir contract.SlotDir, socket string, shutdown func()) (*process, error) {
	g := &process{dir: filepath.Join(string(dir), guestDir), socket: filepath.Join(string(dir), socket), shutdown: shutdown}
	if len(g.socket) > contract.MaxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, and the limit is %d; use a shorter state directory", g.socket, len(g.socket), contract.MaxSocketPath)
	}
	home := filepath.Join(g.dir, homeDir)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	g.command = append(g.command, command...)
	g.command = append(g.command, "--listen=unix:"+g.socket, "--state-dir="+filepath.Join(g.dir, "state"), "--home="+home,
		"--confine", "--exit-with-stdin")
	shares, err := shareCaches(home, spec.Shares)
	g.command = append(g.command, shares...)
	return g, err
}

// cachesDir is the directory of the caches in the home directory of a simulated guest.
const cachesDir = "macrack-caches"

// shareCaches links the shared directories into the home directory of a guest, and returns the
// options of its agent. The guest controls its home directory, so os.Root keeps the links in it.
func shareCaches(home string, shares []contract.Share) ([]string, error) {
	if len(shares) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir(cachesDir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	options := []string{"--caches=" + filepath.Join(home, cachesDir)}
	for _, share := range shares {
		option := "--confine-to="
		if share.ReadOnly {
			option = "--confine-reading="
		}
		options = append(options, option+share.Path)
		if err := root.Symlink(share.Path, filepath.Join(cachesDir, share.Name)); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	return options, nil
}

func (g *process) boot() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up = true
	return g.start()
}

func (g *process) start() error {
	log, err := os.OpenFile(filepath.Join(g.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := os.Remove(g.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// The guest does not inherit the runner's environment. Its standard input ends with the runner,
	// and so the agent exits too.
	cmd := exec.Command(g.command[0], g.command[1:]...)
	cmd.Env, cmd.Dir = []string{}, g.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	g.running, g.stdin = cmd, stdin
	g.ended.Go(func() { g.wait(cmd) })
	return nil
}

// wait handles the exit of the agent: exit code 0 shuts the guest down; any other exit restarts the
// agent.
func (g *process) wait(cmd *exec.Cmd) {
	err := cmd.Wait()
	sweep(filepath.Join(g.dir, homeDir))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = nil
	if !g.up {
		return
	}
	if err == nil {
		g.up = false
		g.shutdown()
		return
	}
	klog.InfoS("Guest agent crashed", "err", err)
	time.AfterFunc(restartPause, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.up && g.running == nil {
			if err := g.start(); err != nil {
				klog.ErrorS(err, "Failed to start guest agent")
			}
		}
	})
}

func (g *process) halt() {
	g.mu.Lock()
	g.up = false
	if g.running != nil {
		_ = g.running.Process.Signal(syscall.SIGCONT)
		_ = g.running.Process.Kill()
	}
	g.mu.Unlock()
	g.ended.Wait()
	_ = os.Remove(g.socket)
}

func (g *process) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running != nil {
		_ = g.running.Process.Signal(s)
	}
}

func (g *process) kill() { g.signal(syscall.SIGKILL) }

func (g *process) freeze(frozen bool) {
	if frozen {
		g.signal(syscall.SIGSTOP)
	} else {
		g.signal(syscall.SIGCONT)
	}
}

func (g *process) connect(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", g.socket)
}
