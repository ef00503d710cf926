// Package agent turns the placeholder pods of a Mac into virtual machines and reports the state of
// the Mac.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/slots"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	instancelisters "macrack.io/macrack/pkg/generated/listers/instance/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// workers lets both slots, the MacNode and an image pull make progress at the same time.
	workers = rules.MaxVMsPerMac + 2
	// stopTimeout bounds the agent's shutdown. Informers that cannot reach the API sleep for up to
	// 30 seconds before they retry, and no work of an agent has to finish.
	stopTimeout = 3 * time.Second
	// ownWrites is how long the agent prefers its own writes to its caches. The limit matters after
	// an API restore: the restored objects keep their older versions.
	ownWrites = 10 * time.Second
	// hostInterval is the interval of the checks of free storage and the boot ID.
	hostInterval = time.Minute
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
	// AnswerTimeout and ProbeInterval configure the slots; zero selects the default.
	AnswerTimeout time.Duration
	ProbeInterval time.Duration
}

// Agent is the agent of one Mac.
type Agent struct {
	config    Config
	queue     workqueue.TypedRateLimitingInterface[key]
	stopQueue workqueue.TypedRateLimitingInterface[int] // by slot number
	node      *node.Node
	slots     *slots.Manager
	instances instancelisters.MacOSInstanceLister
	macNodes  racklisters.MacNodeLister
	// written and wroteNode hold the agent's writes to instances and to its MacNode until the
	// caches catch up.
	written   cache.MutationCache
	wroteNode cache.MutationCache
	state     *state
	sessions  sessions
	recorder  record.EventRecorder

	// minimumFree is the number of bytes that images must leave free on the disk.
	minimumFree atomic.Int64
	reboots     rebootPolicy
	// prefetching is locked while the agent pulls an image that no instance waits for.
	prefetching sync.Mutex

	// starting is read-locked while a VM is placed in a slot and write-locked while the Mac is
	// scrubbed, so that the two never overlap.
	starting sync.RWMutex

	checks imageChecks

	mu       sync.Mutex
	pulls    map[types.UID]context.CancelFunc // image pulls in progress
	refusals map[types.UID]refusals
	launches map[types.UID]launches
	stops    map[int]*stopping // by slot
	// owed holds, by pod name, the rejections that are not yet recorded in the ledger.
	owed map[types.NamespacedName][]*rackv1alpha1.AuditRecord
	// unknown holds, by slot number, the running virtual machines that have no instance.
	unknown map[int]unknownVM
}

type kind int

const (
	macNodeKey kind = iota
	instanceKey
	podKey
	prefetchKey
)

// key identifies an object to reconcile.
type key struct {
	kind kind
	types.NamespacedName
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
	a := &Agent{
		config:    config,
		queue:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, 30*time.Second)),
		stopQueue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[int](100*time.Millisecond, 5*time.Second)),
		unknown:   map[int]unknownVM{},
		pulls:     map[types.UID]context.CancelFunc{},
		refusals:  map[types.UID]refusals{},
		launches:  map[types.UID]launches{},
		stops:     map[int]*stopping{},
		owed:      map[types.NamespacedName][]*rackv1alpha1.AuditRecord{},
	}
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
	if a.state, err = openState(filepath.Join(a.config.StateDir, "state.json")); err != nil {
		return err
	}
	info, err := a.config.Host.Info()
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	a.slots, err = slots.Open(slots.Config{
		Dir: filepath.Join(a.config.StateDir, "slots"), Launcher: a.config.Launcher, Clock: clock.RealClock{},
		AnswerTimeout: a.config.AnswerTimeout, ProbeInterval: a.config.ProbeInterval, OnChange: a.enqueueSlots, OnErase: a.state.erasing,
	})
	if err != nil {
		return err
	}

	// An interrupted operation may have left a tenant's files in a free slot.
	if err := a.slots.EraseFree(); err != nil {
		klog.ErrorS(err, "Failed to erase free slots; they are erased before their next use")
	}

	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.config.Kube.CoreV1().Events("")})
	a.recorder = broadcaster.NewRecorder(kubescheme.Scheme, corev1.EventSource{Component: "macrack-agent", Host: a.config.NodeName})

	a.node = node.New(node.Config{
		Description: node.Description{
			Name: a.config.NodeName, Address: a.config.Address, Port: port(a.config.Listener), Version: a.config.Version, Host: info,
		},
		Client: a.config.Kube, Recorder: a.recorder, Clock: a.config.Clock, OnPod: a.enqueuePod,
	})
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
				Logs: a.Logs, Exec: a.Exec, PortForward: a.PortForward,
			})
			if err != nil {
				failed <- fmt.Errorf("kubelet API: %w", err)
			}
		})
	}
	if cache.WaitForCacheSync(ctx.Done(), append(synced, a.node.PodsSynced)...) {
		adopted := 0
		for _, slot := range a.slots.Statuses() {
			if slot.Phase == slots.Attached {
				adopted++
			}
		}
		klog.InfoS("Agent runs", "node", a.config.NodeName, "serialNumber", info.SerialNumber, "bootID", info.BootID, "adopted", adopted)
		for range workers {
			running.Go(func() { a.work(ctx) })
		}
		for range rules.MaxVMsPerMac {
			running.Go(func() { a.stopSlots(ctx) })
		}
		running.Go(func() { a.every(ctx, hostInterval, a.lookAtHost) })
		running.Go(func() { a.every(ctx, imagesInterval, a.lookAtImages) })
		running.Go(func() { a.every(ctx, imageCheckInterval, func() { a.verifyImages(ctx) }) })
		a.enqueueSlots()
	}

	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	a.queue.ShutDown()
	a.stopQueue.ShutDown()
	return err
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

// startInformers watches only this Mac's MacNode and the instances on it.
func (a *Agent) startInformers(ctx context.Context, running *sync.WaitGroup) ([]cache.InformerSynced, error) {
	only := func(field string) externalversions.SharedInformerOption {
		return externalversions.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(field, a.config.NodeName).String()
		})
	}
	instanceFactory := externalversions.NewSharedInformerFactoryWithOptions(a.config.Macrack, 0, only("status.nodeName"))
	nodeFactory := externalversions.NewSharedInformerFactoryWithOptions(a.config.Macrack, 0, only("metadata.name"))
	instances, macNodes := instanceFactory.Instance().V1alpha1().MacOSInstances(), nodeFactory.Rack().V1alpha1().MacNodes()
	a.instances, a.macNodes = instances.Lister(), macNodes.Lister()
	a.written = cache.NewIntegerResourceVersionMutationCache(klog.Background(), instances.Informer().GetStore(), nil, ownWrites, false)
	a.wroteNode = cache.NewIntegerResourceVersionMutationCache(klog.Background(), macNodes.Informer().GetStore(), nil, ownWrites, false)

	onInstance, err := instances.Informer().AddEventHandler(handler(a.enqueueInstance))
	if err != nil {
		return nil, err
	}
	onMacNode, err := macNodes.Informer().AddEventHandler(handler(func(macNode *rackv1alpha1.MacNode) {
		a.enqueueAll()
		a.enqueuePrefetch(macNode)
	}))
	if err != nil {
		return nil, err
	}
	configFactory := externalversions.NewSharedInformerFactoryWithOptions(a.config.Macrack, 0)
	configs := configFactory.Config().V1alpha1().RackConfigs().Informer()
	if _, err := configs.AddEventHandler(handler(a.configure)); err != nil {
		return nil, err
	}
	running.Go(func() { configs.RunWithContext(ctx) })
	running.Go(func() { instances.Informer().RunWithContext(ctx) })
	running.Go(func() { macNodes.Informer().RunWithContext(ctx) })
	return []cache.InformerSynced{onInstance.HasSynced, onMacNode.HasSynced}, nil
}

// configure applies the RackConfig.
func (a *Agent) configure(config *configv1alpha1.RackConfig) {
	if interval := config.Spec.Agent.HeartbeatInterval.Value(); interval > 0 {
		a.node.SetHeartbeat(interval)
	}
	if minimum := config.Spec.ImageCache.MinimumFree; minimum != nil {
		a.minimumFree.Store(minimum.Int64())
	}
	a.reboots.set(config.Spec.Quarantine.Reboot)
	a.queue.Add(key{kind: macNodeKey})
}

// handler returns an event handler that calls on with the newest object of every event.
func handler[T any](on func(T)) cache.ResourceEventHandler {
	call := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if t, ok := obj.(T); ok {
			on(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: call, UpdateFunc: func(_, obj any) { call(obj) }, DeleteFunc: call}
}

func (a *Agent) enqueueInstance(instance *instancev1alpha1.MacOSInstance) {
	if stop, _ := stopAsked(instance); stop {
		a.cancelPull(instance.UID)
	}
	a.enqueueStops(string(instance.UID))
	if rules.InstanceEnded(instance.Status.Phase) {
		a.queue.Add(key{kind: macNodeKey}) // a scrub waits for the end of the instance
	}
	a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: instance.Namespace, Name: instance.Name}})
}

func (a *Agent) enqueuePod(pod *corev1.Pod) {
	a.enqueueStops(pod.Annotations[rules.AnnotationInstanceUID])
	a.queue.Add(key{podKey, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}})
	if instance, _ := a.ownerOf(pod); instance != nil {
		if pod.DeletionTimestamp != nil {
			a.cancelPull(instance.UID)
		}
		a.enqueueStops(string(instance.UID)) // a tenant may have changed the pod's annotations
		a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: instance.Namespace, Name: instance.Name}})
	}
}

// enqueuePods enqueues the pods of a namespace on this Mac: one may belong to an instance that is
// gone.
func (a *Agent) enqueuePods(namespace string) error {
	pods, err := a.node.Pods().Pods(namespace).List(labels.Everything())
	for _, pod := range pods {
		a.queue.Add(key{podKey, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}})
	}
	return err
}

// enqueueSlots queues the instances in the slots, and the MacNode.
func (a *Agent) enqueueSlots() {
	a.queue.Add(key{kind: macNodeKey})
	if a.slots == nil {
		return // not open yet
	}
	for _, s := range a.slots.Statuses() {
		if s.Spec != nil {
			a.stopQueue.Add(s.Slot)
			a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: s.Spec.Namespace, Name: s.Spec.Name}})
		}
	}
	a.enqueueWaiting()
}

// enqueueWaiting queues the instances without a slot, because a slot may have become free.
func (a *Agent) enqueueWaiting() {
	statuses := a.slots.Statuses()
	if a.instances == nil || !slices.ContainsFunc(statuses[:], func(s slots.Status) bool { return s.Phase == slots.Free }) {
		return
	}
	all, _ := a.instances.List(labels.Everything())
	for _, instance := range all {
		if _, held := a.slots.Find(string(instance.UID)); !held && !rules.InstanceEnded(instance.Status.Phase) {
			a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: instance.Namespace, Name: instance.Name}})
		}
	}
}

// enqueueAll queues all objects, because the lease of the Mac may have changed.
func (a *Agent) enqueueAll() {
	a.enqueueSlots()
	all, _ := a.instances.List(labels.Everything())
	for _, instance := range all {
		a.enqueueInstance(instance)
	}
}

// enqueueAfter queues a key after a wait, measured by the agent's clock.
func (a *Agent) enqueueAfter(ctx context.Context, k key, wait time.Duration) {
	after := a.config.Clock.After(wait)
	go func() {
		select {
		case <-ctx.Done():
		case <-after:
			a.queue.Add(k)
		}
	}()
}

// every calls f at each interval, measured by the agent's clock, until ctx is done.
func (a *Agent) every(ctx context.Context, interval time.Duration, f func()) {
	ticker := a.config.Clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			f()
		}
	}
}

// lookAtHost queues the MacNode, because the state of the host cannot be watched.
func (a *Agent) lookAtHost() { a.queue.Add(key{kind: macNodeKey}) }

func (a *Agent) work(ctx context.Context) {
	for {
		k, shutdown := a.queue.Get()
		if shutdown {
			return
		}
		err := a.reconcile(ctx, k)
		switch {
		case err == nil:
			a.queue.Forget(k)
		case ctx.Err() == nil && !errors.Is(err, context.Canceled):
			klog.V(2).InfoS("Trying again", "key", k.NamespacedName, "kind", k.kind, "err", err)
			a.queue.AddRateLimited(k)
		default:
			a.queue.AddRateLimited(k)
		}
		a.queue.Done(k)
	}
}

func (a *Agent) reconcile(ctx context.Context, k key) error {
	switch k.kind {
	case instanceKey:
		return a.reconcileInstance(ctx, k.NamespacedName)
	case podKey:
		return a.reconcilePod(ctx, k.NamespacedName)
	case prefetchKey:
		return a.reconcilePrefetch(ctx, k.Name)
	default:
		return a.reconcileMacNode(ctx)
	}
}
