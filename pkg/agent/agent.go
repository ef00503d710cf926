// Package agent turns the placeholder pods of a Mac into virtual machines, and
// reports what the Mac is and does.
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
	// workers lets both slots, the MacNode and an image being fetched make progress at the same time.
	workers = rules.MaxVMsPerMac + 2
	// stopTimeout bounds the end. Informers that cannot reach the API sleep until their
	// next try, for up to half a minute, and nothing that an agent does needs to finish.
	stopTimeout = 3 * time.Second
	// ownWrites is how long the agent's own writes are taken for newer than its caches. An API that was restored to an earlier
	// state has older versions for good.
	ownWrites = 10 * time.Second
	// hostInterval is how often the host is looked at: free storage, boot ID.
	hostInterval = time.Minute
)

// Config is what an agent needs.
type Config struct {
	NodeName string
	Kube     kubernetes.Interface
	Macrack  versioned.Interface
	// StateDir holds the slots, and what the agent must not forget. One agent at a
	// time may use it.
	StateDir string
	Host     host.Host
	Launcher slots.Launcher
	// NewMachineID returns a machine identifier that no other machine has.
	NewMachineID func(context.Context) (string, error)
	Images       images.Store
	Clock        clock.WithTicker
	// Version is the agent's version.
	Version string
	// Address and Listener are where the agent's kubelet-style API is reached. The
	// agent has none without a Listener.
	Address  string
	Listener net.Listener
	// ClientCAFile and ClientNames say who is served there: kube-apiserver. Default of
	// the names: node.DefaultClientName.
	ClientCAFile string
	ClientNames  []string
	// ServingCertificate returns the certificate of that API; nil for one of the
	// agent's own, which nobody has signed.
	ServingCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// AnswerTimeout and ProbeInterval are those of the slots; zero for the default.
	AnswerTimeout time.Duration
	ProbeInterval time.Duration
}

// Agent is the agent of one Mac.
type Agent struct {
	config    Config
	queue     workqueue.TypedRateLimitingInterface[key]
	stopQueue workqueue.TypedRateLimitingInterface[int] // of slots
	node      *node.Node
	slots     *slots.Manager
	instances instancelisters.MacOSInstanceLister
	macNodes  racklisters.MacNodeLister
	// written has what the agent wrote to instances and its MacNode, for as long as instances and macNodes may not have it.
	written   cache.MutationCache
	wroteNode cache.MutationCache
	state     *state
	sessions  sessions
	recorder  record.EventRecorder

	// minimumFree is how many bytes of the disk images leave free.
	minimumFree atomic.Int64
	reboots     rebootPolicy
	// prefetching is held while an image is fetched that no instance waits for.
	prefetching sync.Mutex

	// starting is held for reading while a VM is being put into a slot, and for
	// writing while the Mac is scrubbed: neither happens during the other.
	starting sync.RWMutex

	checks imageChecks

	mu       sync.Mutex
	pulls    map[types.UID]context.CancelFunc // image pulls in progress
	refusals map[types.UID]refusals
	launches map[types.UID]launches
	stops    map[int]*stopping // by slot
	// owed are the rejections of pods, by their names, that the ledger has not taken yet.
	owed map[types.NamespacedName][]*rackv1alpha1.AuditRecord
	// unknown are the virtual machines that run and have no instance, by slot.
	unknown map[int]unknownVM
}

type kind int

const (
	macNodeKey kind = iota
	instanceKey
	podKey
	prefetchKey
)

// key is what there is to reconcile.
type key struct {
	kind kind
	types.NamespacedName
}

// New returns an agent. Nothing runs before Run.
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

// Run works until ctx ends. The virtual machines outlive it.
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
		return fmt.Errorf("state directory %s: %w: another agent uses it", a.config.StateDir, err)
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

	// An act that was interrupted may have left a tenant's files in a slot that is free.
	if err := a.slots.EraseFree(); err != nil {
		klog.ErrorS(err, "Free slots could not be emptied; they are before their next use")
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
		klog.InfoS("Ending with parts that wait for the API", "waited", limit)
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

// startInformers watches this Mac's MacNode and the instances on it, no others.
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

// configure does what the fleet's configuration says.
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

// handler calls on with the newest object of every event.
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
		a.queue.Add(key{kind: macNodeKey}) // a scrub waits for its end
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

// enqueueSlots has a look at what the slots hold, and at the MacNode.
func (a *Agent) enqueueSlots() {
	a.queue.Add(key{kind: macNodeKey})
	if a.slots == nil {
		return // still opening
	}
	for _, s := range a.slots.Statuses() {
		if s.Spec != nil {
			a.stopQueue.Add(s.Slot)
			a.queue.Add(key{instanceKey, types.NamespacedName{Namespace: s.Spec.Namespace, Name: s.Spec.Name}})
		}
	}
	a.enqueueWaiting()
}

// enqueueWaiting has a look at the instances that have no slot: one may have become free.
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

// enqueueAll has a look at everything: whose Mac this is may have changed.
func (a *Agent) enqueueAll() {
	a.enqueueSlots()
	all, _ := a.instances.List(labels.Everything())
	for _, instance := range all {
		a.enqueueInstance(instance)
	}
}

// enqueueAfter waits by the agent's clock.
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

// every calls f at each interval by the agent's clock, until ctx is done.
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

// lookAtHost has the MacNode brought up to date: what changes on the host has no watch.
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
