package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/log"
	"github.com/virtual-kubelet/virtual-kubelet/log/klogv2"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// podWorkers is sufficient for two virtual machines.
const podWorkers = 2

// DefaultHeartbeat is the interval between heartbeats until SetHeartbeat is called.
const DefaultHeartbeat = 10 * time.Second

// statusInterval is the interval between updates of the Node's status, as the kubelet has it for a
// status that does not change. The heartbeats are renewals of the Lease.
const statusInterval = 5 * time.Minute

// registerRetry is the pause after a failed registration.
const registerRetry = 2 * time.Second

// Config configures a Node.
type Config struct {
	Description
	Client   kubernetes.Interface
	Recorder record.EventRecorder
	// Clock provides the time of heartbeats.
	Clock clock.PassiveClock
	// OnPod is called when a pod is added, changed or deleted. It must not block.
	OnPod func(*corev1.Pod)
}

// Node is the Mac's Node and its pods.
type Node struct {
	config     Config
	template   *corev1.Node
	factory    informers.SharedInformerFactory
	pods       coreinformers.PodInformer
	nodes      cache.SharedIndexInformer
	provider   *provider
	heartbeats *heartbeats
}

// New prepares the Node; Run registers it.
func New(config Config) *Node {
	named := func(field string) informers.SharedInformerOption {
		return informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(field, config.Name).String()
		})
	}
	podFactory := informers.NewSharedInformerFactoryWithOptions(config.Client, 0, named("spec.nodeName"))
	nodeFactory := informers.NewSharedInformerFactoryWithOptions(config.Client, 0, named("metadata.name"))
	return &Node{
		config:     config,
		template:   config.object(metav1.NewTime(config.Clock.Now())),
		factory:    podFactory,
		pods:       podFactory.Core().V1().Pods(),
		nodes:      nodeFactory.Core().V1().Nodes().Informer(),
		provider:   newProvider(config.OnPod),
		heartbeats: newHeartbeats(config.Name, config.Client, config.Clock),
	}
}

// SetHeartbeat sets the renewal interval of the Node's Lease. The default is DefaultHeartbeat.
func (n *Node) SetHeartbeat(interval time.Duration) {
	n.heartbeats.set(max(interval, time.Second))
}

// Pods lists the pods that are scheduled to this Node.
func (n *Node) Pods() corelisters.PodLister { return n.pods.Lister() }

// PodsSynced reports whether Pods is complete.
func (n *Node) PodsSynced() bool { return n.pods.Informer().HasSynced() }

// SetPodStatus reports a pod's status. An unchanged status causes no request.
func (n *Node) SetPodStatus(pod *corev1.Pod, status corev1.PodStatus) {
	n.provider.setStatus(pod, status)
}

// Ended reports whether the pod has its last status, even if the API does not have it yet.
func (n *Node) Ended(pod *corev1.Pod) bool { return n.provider.ended(pod) }

// Run registers the Node and serves its pods until ctx ends. It registers a deleted Node again.
func (n *Node) Run(ctx context.Context) error {
	ctx = log.WithLogger(ctx, klogv2.New(nil))
	pods, err := n.podController()
	if err != nil {
		return err
	}
	if _, err := n.pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: n.podGone}); err != nil {
		return err
	}
	if _, err := n.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { n.register(ctx) },
	}); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	n.factory.Start(ctx.Done())
	running.Go(func() { n.nodes.RunWithContext(ctx) })
	running.Go(func() { n.keepRegistered(ctx) })
	if err := pods.Run(ctx, podWorkers); err != nil && ctx.Err() == nil {
		return fmt.Errorf("pod controller: %w", err)
	}
	return nil
}

func (n *Node) podGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		n.provider.forget(pod)
		n.config.OnPod(pod)
	}
}

func (n *Node) podController() (*node.PodController, error) {
	// The library requires informers of the objects that pods refer to. Placeholder pods refer to
	// none, and a node may not list Secrets, so these informers are never started.
	unused := informers.NewSharedInformerFactory(n.config.Client, 0)
	return node.NewPodController(node.PodControllerConfig{
		PodClient:                 statusPatcher{n.config.Client.CoreV1(), n.Pods()},
		PodInformer:               n.pods,
		EventRecorder:             podRecorder{n.config.Recorder},
		Provider:                  n.provider,
		ConfigMapInformer:         unused.Core().V1().ConfigMaps(),
		SecretInformer:            unused.Core().V1().Secrets(),
		ServiceInformer:           unused.Core().V1().Services(),
		SkipDownwardAPIResolution: true,
	})
}

// keepRegistered runs the library's node controller until ctx ends. That controller exits if it
// cannot register.
func (n *Node) keepRegistered(ctx context.Context) {
	for {
		err := n.runRegistered(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.ErrorS(err, "Failed to register Node; retrying", "node", n.config.Name)
		select {
		case <-ctx.Done():
			return
		case <-time.After(registerRetry):
		}
	}
}

// runRegistered registers the Node, updates its status and sends heartbeats. The library updates
// the status at its ping interval, because it has no Lease to renew.
func (n *Node) runRegistered(ctx context.Context) error {
	controller, err := node.NewNodeController(
		node.NaiveNodeProvider{}, n.template.DeepCopy(), n.config.Client.CoreV1().Nodes(),
		node.WithNodePingInterval(statusInterval),
		node.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
			if !apierrors.IsNotFound(err) {
				return err
			}
			return n.create(ctx)
		}),
	)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		select {
		case <-controller.Ready():
			n.heartbeats.run(ctx)
		case <-ctx.Done():
		}
	})
	return controller.Run(ctx)
}

// register registers a deleted Node again.
func (n *Node) register(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	klog.InfoS("Node deleted; registering it again as unleased", "node", n.config.Name)
	for {
		err := n.create(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.ErrorS(err, "Failed to register Node; retrying", "node", n.config.Name)
		select {
		case <-ctx.Done():
		case <-time.After(registerRetry):
		}
	}
}

func (n *Node) create(ctx context.Context) error {
	_, err := n.config.Client.CoreV1().Nodes().Create(ctx, n.template.DeepCopy(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Forget ends a pod that is being deleted after its virtual machine has ended, without waiting for
// the pod's grace period.
func (n *Node) Forget(ctx context.Context, pod *corev1.Pod) error {
	err := n.config.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

var errNoPod = errors.New("no such pod on this Mac")
