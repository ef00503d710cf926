// Package agent turns the placeholder pods of a Mac into virtual machines and reports the state of
// the Mac. It connects the packages that do this work, and runs them.
//
// The workers reconcile the objects of one queue, each object by one worker at a time. The stop
// workers have a queue of their own, and call the API only to confirm a stop. The order within the
// steps is as follows:
//   - The registry grants a start before the VM is launched.
//   - The Mac's own disk has the grant, as its witness, before the VM is launched.
//   - A VM is stopped before its stop is reported.
//   - An end is reported before the slot is erased, unless the VM never started.
//   - A rejection is recorded before its instance fails or its files are erased.
//   - No VM is placed in a slot during a scrub or a reboot.
//   - No start begins in a quarantine.
//   - On a server that lacks records that the Mac has seen, only an explicit request stops a VM.
package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/caches"
	"macrack.io/macrack/pkg/agent/environment"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/agent/instance"
	"macrack.io/macrack/pkg/agent/macnode"
	"macrack.io/macrack/pkg/agent/metrics"
	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/pods"
	"macrack.io/macrack/pkg/agent/quarantine"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/scrub"
	"macrack.io/macrack/pkg/agent/session"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/state"
	"macrack.io/macrack/pkg/agent/teardown"
	"macrack.io/macrack/pkg/agent/witness"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/certificatemetrics"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// workers lets both slots, the MacNode and an image pull make progress at the same time.
	workers = rules.MaxVMsPerMac + 2
	// maxRetryDelay bounds the wait before failed work is retried.
	maxRetryDelay = 30 * time.Second
	// stopTimeout bounds the agent's shutdown. Informers that cannot reach the API sleep for up to
	// 30 seconds before they retry, and it is safe to interrupt any of the agent's work.
	stopTimeout = 3 * time.Second
	// hostInterval is the interval of the checks of free storage and the boot ID.
	hostInterval = time.Minute
	// imagesInterval is the interval at which the images on the disk are listed.
	imagesInterval = 10 * time.Second
)

// Config configures an agent.
type Config struct {
	NodeName string
	Kube     kubernetes.Interface
	Macrack  versioned.Interface
	// StateDir holds the slots and the agent's persistent state. It belongs to one agent at a time.
	StateDir string
	Host     host.Host
	Launcher slots.Launcher
	// NewMachineID returns a unique machine identifier.
	NewMachineID func(context.Context) (string, error)
	Images       images.Store
	Clock        clock.WithTicker
	// Version is the agent's version.
	Version string
	// Address and Listener are the address of the agent's kubelet-style API. Without a Listener the
	// agent serves no API.
	Address  string
	Listener net.Listener
	// ClientCAFile and ClientNames identify the permitted client: kube-apiserver. ClientNames
	// defaults to node.DefaultClientName.
	ClientCAFile string
	ClientNames  []string
	// ServingCertificate returns the certificate of that API. If it is nil, the agent uses a
	// self-signed certificate.
	ServingCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Certificates are the agent's certificates, by purpose, for metrics.
	Certificates map[string]certificatemetrics.Source
	// AnswerTimeout and ProbeInterval configure the slots; zero selects the default.
	AnswerTimeout time.Duration
	ProbeInterval time.Duration
}

// Agent is the agent of one Mac.
type Agent struct {
	config  Config
	queue   *queue.Queue[queue.Key]
	metrics *metrics.Metrics
	// minimumFree is the number of bytes that images must leave free on the disk.
	minimumFree atomic.Int64
	// placementLock is read-locked while a VM is placed in a slot and write-locked while the Mac is
	// scrubbed or rebooted, so that these never overlap.
	placementLock sync.RWMutex

	// Run sets the following.
	state       *state.File
	slots       *slots.Manager
	node        *node.Node
	objects     *apiObjects
	witness     *witness.Keeper
	witnessFile *witness.File
	pods        *pods.Pods
	stopper     *teardown.Stopper
	mismatches  *quarantine.Mismatches
	rebooter    *quarantine.Rebooter
	caches      *caches.Manager
	images      *imagestatus.Cache
	checker     *imagestatus.Checker
	puller      *imagestatus.Puller
	prefetcher  *imagestatus.Prefetcher
	instance    *instance.Controller
	macNode     *macnode.Reporter
	session     *session.Sessions
}

// New returns an agent. Run starts it.
func New(config Config) (*Agent, error) {
	for name, missing := range map[string]bool{
		"NodeName": config.NodeName == "", "Kube": config.Kube == nil, "Macrack": config.Macrack == nil, "StateDir": config.StateDir == "",
		"Host": config.Host == nil, "Launcher": config.Launcher == nil, "NewMachineID": config.NewMachineID == nil,
		"Images": config.Images == nil, "Clock": config.Clock == nil,
	} {
		if missing {
			return nil, fmt.Errorf("agent.Config.%s is not set", name)
		}
	}
	if len(config.ClientNames) == 0 {
		config.ClientNames = []string{node.DefaultClientName}
	}
	a := &Agent{config: config, queue: queue.New[queue.Key](config.Clock, maxRetryDelay), metrics: metrics.New()}
	a.config.Images = a.metrics.Store(config.Images, config.Clock)
	a.minimumFree.Store(configv1alpha1.DefaultMinimumFree)
	return a, nil
}

// Run runs the agent until ctx ends. The virtual machines outlive it.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer waitAtMost(&running, stopTimeout)
	defer cancel()

	if err := os.MkdirAll(a.config.StateDir, 0o700); err != nil {
		return err
	}
	lock, err := contract.TryLockFile(filepath.Join(a.config.StateDir, "agent.lock"))
	if err != nil {
		return fmt.Errorf("state directory %s: %w; it is in use by another agent", a.config.StateDir, err)
	}
	defer lock.Unlock()
	info, err := a.open()
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.config.Kube.CoreV1().Events("")})
	a.buildComponents(info, broadcaster.NewRecorder(kubescheme.Scheme, corev1.EventSource{Component: "macrack-agent", Host: a.config.NodeName}))
	synced, err := a.startInformers(ctx, &running)
	if err != nil {
		return err
	}

	failed := make(chan error, 2)
	running.Go(func() { a.slots.Run(ctx) })
	running.Go(func() {
		if err := a.node.Run(ctx); err != nil {
			failed <- err
		}
	})
	if a.config.Listener != nil {
		running.Go(func() {
			err := a.node.Serve(ctx, a.config.Listener, node.ServerConfig{
				ClientCAFile: a.config.ClientCAFile, ClientNames: a.config.ClientNames,
				Certificate: a.config.ServingCertificate, CertDir: filepath.Join(a.config.StateDir, "pki"),
				Logs: a.session.Logs, Exec: a.session.Exec, PortForward: a.session.PortForward,
				Metrics: a.metrics.Handler(),
			})
			if err != nil {
				failed <- fmt.Errorf("kubelet API: %w", err)
			}
		})
	}
	if cache.WaitForCacheSync(ctx.Done(), append(synced, a.node.PodsSynced)...) {
		klog.InfoS("Agent started", "node", a.config.NodeName, "serialNumber", info.SerialNumber, "bootID", info.BootID, "adopted", a.adopted())
		a.startWorkers(ctx, &running)
	}

	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	a.queue.ShutDown()
	a.stopper.ShutDown()
	return err
}

// open reads the state that the previous agent has left on the disk, and the facts of the host.
func (a *Agent) open() (host.Info, error) {
	var err error
	if a.state, err = state.Open(filepath.Join(a.config.StateDir, "state.json")); err != nil {
		return host.Info{}, err
	}
	if a.witnessFile, err = witness.Open(filepath.Join(a.config.StateDir, "witness.json")); err != nil {
		return host.Info{}, err
	}
	info, err := a.config.Host.Info()
	if err != nil {
		return host.Info{}, fmt.Errorf("host: %w", err)
	}
	a.slots, err = slots.Open(slots.Config{
		Dir: filepath.Join(a.config.StateDir, "slots"), Launcher: a.config.Launcher, Clock: clock.RealClock{},
		AnswerTimeout: a.config.AnswerTimeout, ProbeInterval: a.config.ProbeInterval, OnChange: a.enqueueSlots, OnErase: a.state.Erasing,
	})
	if err != nil {
		return host.Info{}, err
	}
	a.metrics.Register(metrics.Sources{
		Slots: a.slots.Statuses, Images: a.config.Images.List, Dir: a.config.StateDir, Certificates: a.config.Certificates,
	})
	// An interrupted operation may have left a tenant's files in a free slot.
	if err := a.slots.EraseFree(); err != nil {
		klog.ErrorS(err, "Failed to erase free slots; they are erased before their next use")
	}
	return info, nil
}

// buildComponents constructs the parts of the agent.
func (a *Agent) buildComponents(info host.Info, recorder record.EventRecorder) {
	c, o := a.config, newAPIObjects(a.config, a.queue)
	a.objects = o
	a.node = node.New(node.Config{
		Description: node.Description{Name: c.NodeName, Address: c.Address, Port: port(c.Listener), Version: c.Version, Host: info},
		Client:      c.Kube, Recorder: recorder, Clock: c.Clock, OnPod: a.enqueuePod,
	})
	a.witness = witness.New(witness.Config{
		File: a.witnessFile, SerialNumber: info.SerialNumber, MacNode: o.macNode, Instances: o.instances, Slots: a.slots, Queue: a.queue, Clock: c.Clock,
	})
	rejected := rejections.NewRecorder(c.Macrack, o.macNode)
	a.pods = pods.New(pods.Config{
		Kube: c.Kube, Node: a.node, Instances: o.instances, MacNode: o.macNode, Slots: a.slots, Rejections: rejected, Queue: a.queue,
	})
	a.session = session.New(a.pods, a.slots, c.Clock)
	a.stopper = teardown.New(teardown.Config{
		Slots: a.slots, Instances: o.instances, Pods: a.pods, Rejections: rejected, State: a.state, Queue: a.queue, Clock: c.Clock,
		Witness: a.witness,
	})
	a.mismatches = quarantine.NewMismatches(quarantine.MismatchConfig{
		Slots: a.slots, Instances: o.instances, MacNode: o.macNode, Stopper: a.stopper, Queue: a.queue, Clock: c.Clock, EnqueueAll: a.enqueueAll,
		Witness: a.witness,
	})
	slotQuarantine := quarantine.New(quarantine.Config{
		State: a.state, Host: c.Host, Slots: a.slots, MacNode: o.macNode, Mismatches: a.mismatches, Stopper: a.stopper,
		Rejections: rejected, Queue: a.queue, Clock: c.Clock, EnqueueAll: a.enqueueAll,
	})
	a.rebooter = quarantine.NewRebooter(quarantine.RebootConfig{
		Host: c.Host, Slots: a.slots, Instances: o.instances, Queue: a.queue, Clock: c.Clock, StateDir: c.StateDir, PlacementLock: &a.placementLock,
	})
	a.caches = caches.New(filepath.Join(c.StateDir, "caches"), caches.NewDisk())
	a.images = &imagestatus.Cache{
		Kube: c.Kube, Store: c.Images, Instances: o.instances, MacNode: o.macNode, Queue: a.queue, Recorder: recorder,
		MinimumFree: &a.minimumFree, Reserved: a.caches.Reserved,
	}
	a.checker = imagestatus.NewChecker(a.images, c.Macrack, c.Clock)
	a.puller = imagestatus.NewPuller(a.images, a.checker, a.stopper, c.Clock)
	a.prefetcher = imagestatus.NewPrefetcher(a.images, c.Macrack)
	sender := &environment.Sender{Kube: c.Kube, Instances: o.instances, Slots: a.slots, Queue: a.queue, Recorder: recorder}
	a.instance = instance.New(instance.Config{
		Client: c.Macrack, Slots: a.slots, Instances: o.instances, MacNode: o.macNode, Pods: a.pods, Stopper: a.stopper,
		Mismatches: a.mismatches, Quarantine: slotQuarantine, Puller: a.puller, Environment: sender, Caches: a.caches, Recorder: recorder, Rejections: rejected, Queue: a.queue, Clock: c.Clock,
		NewMachineID: c.NewMachineID, PlacementLock: &a.placementLock, Witness: a.witness,
	})
	a.macNode = macnode.New(macnode.Config{
		Version: c.Version, Host: c.Host, Images: c.Images, Checker: a.checker, MacNode: o.macNode, State: a.state,
		Quarantine: slotQuarantine, Rebooter: a.rebooter, Witness: a.witness,
		Scrubber: scrub.New(scrub.Config{
			Slots: a.slots, Caches: a.caches, Images: c.Images, Instances: o.instances, State: a.state, Clock: c.Clock, PlacementLock: &a.placementLock,
		}),
	})
}

// adopted counts the virtual machines that have outlived the previous agent.
func (a *Agent) adopted() int {
	n := 0
	for _, slot := range a.slots.Statuses() {
		if slot.Phase == slots.Attached {
			n++
		}
	}
	return n
}

// startWorkers starts the work; the caches are complete.
func (a *Agent) startWorkers(ctx context.Context, running *sync.WaitGroup) {
	for range workers {
		running.Go(func() { a.work(ctx) })
	}
	for range rules.MaxVMsPerMac {
		running.Go(func() { a.stopper.Run(ctx) })
	}
	// The state of the host cannot be watched.
	running.Go(func() { a.every(ctx, hostInterval, func() { a.queue.Add(queue.MacNode()) }) })
	running.Go(func() { a.every(ctx, imagesInterval, a.images.Compare) })
	running.Go(func() { a.every(ctx, rules.MinimumImageCheckInterval, func() { a.checker.CheckDue(ctx) }) })
	a.enqueueSlots()
}

func waitAtMost(running *sync.WaitGroup, limit time.Duration) {
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-clock.RealClock{}.After(limit):
		klog.InfoS("Shutdown timed out waiting for API calls", "waited", limit)
	}
}

func port(l net.Listener) int32 {
	if l == nil {
		return 0
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		return int32(tcp.Port)
	}
	return 0
}
