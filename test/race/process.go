package race

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"macrack.io/macrack/test/registrytest"
)

// childEnv has the role of a child process, which runs the same binary.
const childEnv = "MACRACK_RACE_CHILD"

// A role is that of a child process: a server, or a member of etcd.
type role struct {
	Listen string // host:port

	// Of a server.
	Etcd  []string
	Clock string
	Skew  time.Duration

	// Of a member of etcd.
	Member, Peer, Cluster, Dir string
}

// Child runs this process as a part of a race if it was started for that, and does not return then.
// Programs that call Run must call it first.
func Child() {
	value := os.Getenv(childEnv)
	if value == "" {
		return
	}
	go func() { // the parent holds the other end while it lives
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var r role
	err := json.Unmarshal([]byte(value), &r)
	if err == nil && r.Member != "" {
		err = r.runEtcd()
	} else if err == nil {
		err = r.runServer()
	}
	fmt.Fprintln(os.Stderr, "race: the process failed:", err)
	os.Exit(1)
}

func (r *role) runServer() error {
	clock, err := openClock(r.Clock, r.Skew)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", r.Listen)
	if err != nil {
		return err
	}
	applyFaults()
	return registrytest.Serve(context.Background(), r.Etcd, listener, clock)
}

func (r *role) runEtcd() error {
	config := embed.NewConfig()
	config.Name, config.Dir = r.Member, r.Dir
	client, peer := url.URL{Scheme: "http", Host: r.Listen}, url.URL{Scheme: "http", Host: r.Peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = r.Cluster
	config.UnsafeNoFsync = true // only processes die, not the machine
	config.QuotaBackendBytes = 16 << 30
	logger, err := zap.NewProduction(zap.IncreaseLevel(zap.WarnLevel))
	if err != nil {
		return err
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	return <-server.Err()
}

// A process is a child that can be killed and restarted.
type process struct {
	name string
	role role
	log  string

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.Closer
	died  chan struct{}
}

func newProcess(dir, name string, role role) *process {
	return &process{name: name, role: role, log: filepath.Join(dir, name+".log")}
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	value, err := json.Marshal(p.role)
	if err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(executable)
	p.cmd.Env = append([]string{"GOGC=400"}, append(os.Environ(), childEnv+"="+string(value))...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.died = make(chan struct{})
	go func(cmd *exec.Cmd, died chan struct{}) {
		_ = cmd.Wait()
		close(died)
	}(p.cmd, p.died)
	return nil
}

// kill kills the process with SIGKILL and waits for its end.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.died
	_ = p.stdin.Close()
	p.cmd = nil
}

// dead reports whether the process has ended by itself.
func (p *process) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.died:
		return true
	default:
		return false
	}
}

// await waits until check succeeds for the process.
func (p *process) await(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if p.dead() {
			return fmt.Errorf("%s has ended; see %s", p.name, p.log)
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not ready; see %s", p.name, p.log), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freeAddresses returns n unused addresses on loopback.
func freeAddresses(n int) ([]string, error) {
	var addresses []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}
