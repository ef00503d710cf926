// Package cluster runs a real Kubernetes control plane and macrack on loopback. Each component is a
// separate process, with real TLS and real RBAC. `make up` uses the repository's .dev folder and
// fixed ports; tests use a temporary folder and free ports.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/pki"
	"macrack.io/macrack/test/cluster/process"
)

// Cluster is a running cluster, or the state of a stopped one.
type Cluster struct {
	opts      Options
	dir       string
	temporary bool
	root, bin string
	progress  io.Writer

	ports      *ports
	pki        pki.Dir
	components []*component

	mu           sync.Mutex // guards the writing of certificates and kubeconfigs
	cancel       context.CancelFunc
	stopKeeper   func()
	balancerDone chan error
	guard        *process.Guard
}

// Start starts a cluster and returns when all of it serves. On failure it stops what it started,
// and the error quotes the end of the failed component's log.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	c, err := Open(opts)
	if err != nil {
		return nil, err
	}
	if err := c.Up(ctx); err != nil {
		return nil, errors.Join(err, c.stopAfterFailure())
	}
	return c, nil
}

func (c *Cluster) stopAfterFailure() error {
	if c.opts.Detach {
		return nil // running components are kept for inspection and for the next attempt
	}
	return c.Stop()
}

// Open prepares the state of a cluster (keys, ports, kubeconfigs) without starting it.
func Open(opts Options) (*Cluster, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	root, err := build.Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, root: root, bin: filepath.Join(root, ".dev", "bin"), progress: opts.Progress, balancerDone: make(chan error, 1)}
	if opts.Dir == "" {
		c.temporary = true
		c.dir, err = os.MkdirTemp("/tmp", "macrack-") // $TMPDIR can be too long for the sockets in it
	} else {
		c.dir, err = filepath.Abs(opts.Dir)
	}
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"log", "run", "pki", "kube"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if c.dir, err = filepath.EvalSymlinks(c.dir); err != nil {
		return nil, err
	}
	c.pki = pki.Dir(filepath.Join(c.dir, "pki"))
	if err := c.loadPorts(); err != nil {
		return nil, err
	}
	if err := errors.Join(c.writePKI(), c.writeAdmissionConfig()); err != nil {
		return nil, err
	}
	if err := c.plan(); err != nil {
		return nil, err
	}
	return c, c.save()
}

// Up starts every component that does not run, or runs with other arguments. Healthy components
// keep running.
func (c *Cluster) Up(ctx context.Context) error {
	unlock, err := process.Lock(ctx, filepath.Join(c.dir, "up.lock"), c.progress)
	if err != nil {
		return err
	}
	defer unlock()

	if _, err := build.ControlPlane(ctx, c.progress); err != nil {
		return err
	}
	if c.opts.Apiservers > 0 || c.opts.Detach {
		if _, err := build.Product(ctx, c.progress); err != nil {
			return err
		}
	}
	if !c.opts.Detach && c.guard == nil {
		if c.guard, err = process.NewGuard(c.bin, c.dir, c.temporary); err != nil {
			return err
		}
	}
	if err := errors.Join(c.stopUnknown(ctx), c.stopComponents(ctx, (*component).Outdated)); err != nil {
		return err
	}
	for _, s := range []stage{stageEtcd, stageKubeAPIServer} {
		if err := c.startStage(ctx, s); err != nil {
			return err
		}
	}
	if err := c.prepareKubernetes(ctx); err != nil {
		return err
	}
	if c.opts.Apiservers > 0 {
		if err := c.startBalancer(); err != nil {
			return err
		}
		if err := c.AggregateTo(ctx, c.Port("balancer"), c.ServingCA()); err != nil {
			return err
		}
	}
	for _, s := range []stage{stageKubeControllers, stageAPIServer} {
		if err := c.startStage(ctx, s); err != nil {
			return err
		}
	}
	if c.opts.Apiservers > 0 {
		if err := c.WaitForAPI(ctx); err != nil {
			return err
		}
	}
	if c.opts.Example {
		if err := c.ApplyExample(ctx); err != nil {
			return err
		}
	}
	if err := c.startStage(ctx, stageControllers); err != nil {
		return err
	}
	for n := range c.opts.Macs {
		if err := c.join(ctx, n+1); err != nil {
			return err
		}
	}
	for _, s := range []stage{stageAgents, stageKeeper} {
		if err := c.startStage(ctx, s); err != nil {
			return err
		}
	}
	c.startKeeper()
	return nil
}

// startKeeper runs the keeper in this program, unless a separate process does.
func (c *Cluster) startKeeper() {
	if !c.opts.Keep || c.opts.Detach || c.stopKeeper != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.stopKeeper = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		if err := process.Keep(ctx, c.dir, c.progress); err != nil {
			fmt.Fprintln(c.progress, "the keeper failed:", err)
		}
	}()
}

// Stop ends every process of the cluster, including the simulated VMs, and removes a temporary
// folder. State in a given folder stays.
func (c *Cluster) Stop() error {
	ctx := context.Background()
	unlock, err := process.Lock(ctx, filepath.Join(c.dir, "up.lock"), c.progress)
	if err != nil {
		return err
	}
	defer unlock()
	if c.stopKeeper != nil {
		c.stopKeeper()
		c.stopKeeper = nil
	}
	if c.cancel != nil {
		c.cancel()
		<-c.balancerDone
		c.cancel = nil
	}
	err = errors.Join(
		c.stopUnknown(ctx),
		c.stopComponents(ctx, func(*component) bool { return true }),
		process.StopStrays(ctx, filepath.Join(c.bin, build.Programs["vm"]), filepath.Join(c.dir, "macs")),
		c.releaseGuard(),
	)
	if c.temporary && err == nil {
		return os.RemoveAll(c.dir)
	}
	return err
}

func (c *Cluster) releaseGuard() error {
	if c.guard == nil {
		return nil
	}
	err := c.guard.Release()
	c.guard = nil
	return err
}

// Dir returns the folder with the cluster's state.
func (c *Cluster) Dir() string { return c.dir }

// Bin returns the folder with the binaries.
func (c *Cluster) Bin() string { return c.bin }

// Port returns the loopback port of a listener by the name of its component. It panics on an
// unknown name.
func (c *Cluster) Port(name string) int {
	port, err := c.ports.of(name)
	if err != nil {
		panic(err)
	}
	return port
}

// startBalancer runs the balancer in this program, unless a separate process does.
func (c *Cluster) startBalancer() error {
	if c.opts.Detach || c.cancel != nil {
		return nil
	}
	ready, err := Readyz(c.pki.CertFile(servingCA))
	if err != nil {
		return err
	}
	port := c.Port("balancer")
	if err := process.CheckPort(port); err != nil {
		return fmt.Errorf("starting the balancer: %w", err)
	}
	l, err := net.Listen("tcp", process.Loopback(port))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() { c.balancerDone <- Balance(ctx, l, c.apiserverAddresses(), ready) }()
	return nil
}

func (c *Cluster) apiserverAddresses() []string {
	var all []string
	for n := range c.opts.Apiservers {
		all = append(all, process.Loopback(c.Port(fmt.Sprintf("macrack-apiserver-%d", n+1))))
	}
	return all
}
