// Package cluster runs a real Kubernetes control plane and macrack on loopback. Each component is a
// separate process, with real TLS and real RBAC. `make up` uses the repository's .dev folder and
// fixed ports; tests use a temporary folder and free ports.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/pki"
	"macrack.io/macrack/test/cluster/process"
)

// Options are the parts of a cluster. The zero value is a control plane, and an etcd for macrack,
// in a temporary folder on free ports.
type Options struct {
	// Dir holds the state: keys, data, logs, pid files. The cluster of an existing folder is
	// continued. Empty: a temporary folder, which Stop removes.
	Dir string `json:"-"`
	// PortBase is the first of the fixed ports. 0: free ports, which stay the same for the life of
	// Dir.
	PortBase int `json:"portBase,omitempty"`

	// EtcdMembers is the size of macrack's own etcd: 1 (the default) or 3.
	EtcdMembers int `json:"etcdMembers,omitempty"`
	// Apiservers is the number of replicas of macrack-apiserver. If there are any, the applicable
	// parts of artifacts/deploy are applied, and the API is served through kube-apiserver.
	Apiservers int `json:"apiservers,omitempty"`
	// Controllers is the number of replicas of macrack-controllers, one of them the leader.
	Controllers int `json:"controllers,omitempty"`
	// Macs is the number of agents with simulated Macs, named mac-1, mac-2, ...
	Macs int `json:"macs,omitempty"`
	// Example applies artifacts/example: the catalogue, two tenants and three Macs.
	Example bool `json:"example,omitempty"`
	// Sync makes etcd sync to the disk as in production. Without it, data survives the death of
	// processes, but not of the machine.
	Sync bool `json:"sync,omitempty"`
	// ExtraArgs are added to the command line of a component, by its name without a number
	// (macrack-apiserver).
	ExtraArgs map[string][]string `json:"extraArgs,omitempty"`

	// Direct adds macrack-apiserver at the balancer's port to the kubeconfig for people, although the
	// caller starts it.
	Direct bool `json:"direct,omitempty"`
	// Detach runs the balancer as a separate process, so that the cluster outlives this program. It
	// also starts the keeper, which restarts crashed components as a kubelet or launchd would.
	Detach bool `json:"detach,omitempty"`

	// Progress receives progress messages. Default: standard error.
	Progress io.Writer `json:"-"`
}

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
	balancerDone chan error
	guard        *process.Guard
}

// component is a process with its place in the start order.
type component struct {
	process.Process
	stage stage
}

type stage int

const (
	stageEtcd stage = iota
	stageKubeAPIServer
	stageKubeControllers
	stageAPIServer
	stageControllers
	stageAgents
	stageKeeper
)

// readyTimeout is the time in which a stage must serve; a busy machine with two cores needs most of
// a minute.
const readyTimeout = 4 * time.Minute

// healthyWithin is the time in which a running component must answer before it is restarted.
const healthyWithin = 15 * time.Second

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

// ErrNoCluster means that a folder holds no cluster state.
var ErrNoCluster = errors.New("there is no cluster")

// StatePaths are the names of a cluster's files in its folder.
var StatePaths = []string{"cluster.json", "kubeconfig", "up.lock", "data", "deploy", "example", "kube", "kubectl-cache", "log", "macs", "pki", "registry", "run"}

// Reopen is Open with the options of the last Open of the cluster in dir.
func Reopen(dir string, progress io.Writer) (*Cluster, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s; start one with `make up`", ErrNoCluster, dir)
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	s.Options.Dir, s.Options.Progress = dir, progress
	return Open(s.Options)
}

func (o *Options) complete() error {
	if o.EtcdMembers == 0 {
		o.EtcdMembers = 1
	}
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	switch {
	case o.EtcdMembers != 1 && o.EtcdMembers != maxEtcdMembers:
		return fmt.Errorf("invalid number of etcd members %d; use 1 or %d", o.EtcdMembers, maxEtcdMembers)
	case o.Apiservers < 0 || o.Apiservers > maxReplicas || o.Controllers < 0 || o.Controllers > maxReplicas:
		return fmt.Errorf("invalid number of replicas: %d macrack-apiservers and %d macrack-controllers; use 0 to %d of each", o.Apiservers, o.Controllers, maxReplicas)
	case o.Macs < 0 || o.Macs > maxMacs:
		return fmt.Errorf("invalid number of Macs %d; use 0 to %d", o.Macs, maxMacs)
	case o.Apiservers == 0 && (o.Controllers > 0 || o.Macs > 0 || o.Example):
		return errors.New("controllers, Macs and the example need at least one macrack-apiserver")
	}
	return nil
}

const stateFile = "cluster.json"

type state struct {
	Options Options `json:"options"`
	Ports   *ports  `json:"ports"`
}

func (c *Cluster) loadPorts() error {
	c.ports = &ports{Base: c.opts.PortBase}
	data, err := os.ReadFile(filepath.Join(c.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s := state{}
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.dir, stateFile), err)
	}
	if s.Ports != nil && s.Ports.Base == c.opts.PortBase {
		c.ports = s.Ports
	}
	return nil
}

func (c *Cluster) save() error {
	data, err := json.MarshalIndent(state{Options: c.opts, Ports: c.ports}, "", "  ")
	if err != nil {
		return err
	}
	return process.WriteFile(filepath.Join(c.dir, stateFile), append(data, '\n'), 0o644)
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
	return nil
}

func (c *Cluster) startStage(ctx context.Context, s stage) error {
	var wanted []*component
	for _, comp := range c.components {
		if comp.stage == s {
			wanted = append(wanted, comp)
		}
	}
	var mu sync.Mutex
	running := map[*component]bool{}
	err := each(wanted, func(comp *component) error {
		ok, err := c.leaveRunning(ctx, comp)
		mu.Lock()
		defer mu.Unlock()
		running[comp] = ok
		return err
	})
	if err != nil {
		return err
	}
	starting := slices.DeleteFunc(slices.Clone(wanted), func(comp *component) bool { return running[comp] })
	if len(starting) == 0 {
		return nil
	}
	var names []string
	for _, comp := range starting {
		names = append(names, comp.Name)
	}
	fmt.Fprintf(c.progress, "starting %s\n", strings.Join(names, ", "))
	for _, comp := range starting {
		if err := c.locked(ctx, comp.Name, comp.Start); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	return each(starting, func(comp *component) error { return comp.WaitReady(ctx) })
}

// leaveRunning reports whether the component runs and is healthy. If it runs but is not healthy, it
// is stopped.
func (c *Cluster) leaveRunning(ctx context.Context, comp *component) (bool, error) {
	if _, ok := comp.Running(); !ok {
		return false, nil
	}
	healthy, cancel := context.WithTimeout(ctx, healthyWithin)
	defer cancel()
	if comp.WaitReady(healthy) == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	fmt.Fprintf(c.progress, "%s runs but does not answer: restarting it\n", comp.Name)
	return false, c.locked(ctx, comp.Name, func() error { return comp.Stop(ctx) })
}

// stopComponents stops the running components that match, clients before their servers.
func (c *Cluster) stopComponents(ctx context.Context, match func(*component) bool) error {
	var errs error
	for s := stageKeeper; s >= stageEtcd; s-- {
		var ending []*component
		for _, comp := range c.components {
			if _, ok := comp.Running(); ok && comp.stage == s && match(comp) {
				ending = append(ending, comp)
			}
		}
		errs = errors.Join(errs, each(ending, func(comp *component) error {
			return c.locked(ctx, comp.Name, func() error { return comp.Stop(ctx) })
		}))
	}
	return errs
}

// stopUnknown stops components that ran in this folder and are no longer wanted.
func (c *Cluster) stopUnknown(ctx context.Context) error {
	unknown, err := c.unknown()
	if err != nil {
		return err
	}
	return each(unknown, func(p *process.Process) error {
		return c.locked(ctx, p.Name, func() error { return p.Stop(ctx) })
	})
}

func (c *Cluster) unknown() ([]*process.Process, error) {
	all, err := process.Recorded(c.dir)
	return slices.DeleteFunc(all, func(p *process.Process) bool { return c.component(p.Name) != nil }), err
}

// locked runs f while no other program starts or stops the component.
func (c *Cluster) locked(ctx context.Context, name string, f func() error) error {
	unlock, err := process.Lock(ctx, filepath.Join(c.dir, "run", name+".lock"), c.progress)
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}

// Kill ends a component like a crash (SIGKILL). It stays down until Restart or Up.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	return c.locked(ctx, name, func() error { return comp.Kill(ctx) })
}

// Shutdown ends a component gracefully (SIGTERM). It stays down until Restart or Up.
func (c *Cluster) Shutdown(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	return c.locked(ctx, name, func() error { return comp.Stop(ctx) })
}

// Signal sends a signal to a component; SIGSTOP and SIGCONT simulate a hang.
func (c *Cluster) Signal(name string, sig syscall.Signal) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	rec, ok := comp.Running()
	if !ok {
		return fmt.Errorf("%s does not run", name)
	}
	return syscall.Kill(rec.PID, sig)
}

// Restart stops a component gracefully if it runs, starts it, and returns when it serves.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	err = c.locked(ctx, name, func() error { return errors.Join(comp.Stop(ctx), comp.Start()) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	return comp.WaitReady(ctx)
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

// Status is the state of one component.
type Status struct {
	Name  string
	PID   int // 0: does not run
	Ports []int
	Ready error // nil: it serves
	Log   string
}

// Status checks every component.
func (c *Cluster) Status(ctx context.Context) []Status {
	ctx, cancel := context.WithTimeout(ctx, healthyWithin)
	defer cancel()
	all := make([]Status, len(c.components))
	var asked sync.WaitGroup
	for i, comp := range c.components {
		asked.Go(func() {
			s := Status{Name: comp.Name, Ports: comp.Ports, Log: comp.LogFile, Ready: errors.New("does not run")}
			if rec, ok := comp.Running(); ok {
				s.PID, s.Ready = rec.PID, nil
				if comp.Ready != nil {
					s.Ready = comp.Ready(ctx)
				}
			}
			all[i] = s
		})
	}
	asked.Wait()
	return all
}

// Dir returns the folder with the cluster's state.
func (c *Cluster) Dir() string { return c.dir }

// Bin returns the folder with the binaries.
func (c *Cluster) Bin() string { return c.bin }

// Names returns the components in their start order.
func (c *Cluster) Names() []string {
	var names []string
	for _, comp := range c.components {
		names = append(names, comp.Name)
	}
	return names
}

// LogFile returns the path of a component's log.
func (c *Cluster) LogFile(name string) string { return filepath.Join(c.dir, "log", name+".log") }

// PID returns the pid of a component, 0 if it does not run.
func (c *Cluster) PID(name string) int {
	if comp := c.component(name); comp != nil {
		if rec, ok := comp.Running(); ok {
			return rec.PID
		}
	}
	return 0
}

// Port returns the loopback port of a listener by the name of its component. It panics on an
// unknown name.
func (c *Cluster) Port(name string) int {
	port, err := c.ports.of(name)
	if err != nil {
		panic(err)
	}
	return port
}

func (c *Cluster) component(name string) *component {
	for _, comp := range c.components {
		if comp.Name == name {
			return comp
		}
	}
	return nil
}

func (c *Cluster) find(name string) (*component, error) {
	if comp := c.component(name); comp != nil {
		return comp, nil
	}
	return nil, fmt.Errorf("unknown component %q; use one of %s", name, strings.Join(c.Names(), ", "))
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

// each runs f for all items at once and joins the errors.
func each[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { errs[i] = f(item) })
	}
	all.Wait()
	return errors.Join(errs...)
}
