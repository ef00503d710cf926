package node

import (
	"context"
	"sync"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// provider passes pods to the agent and statuses to the library. It makes no decisions, and its
// state is rebuilt after a restart.
type provider struct {
	onPod func(*corev1.Pod)

	mu     sync.Mutex
	pods   map[types.NamespacedName]*corev1.Pod
	notify func(*corev1.Pod)
}

var (
	_ node.PodLifecycleHandler = (*provider)(nil)
	_ node.PodNotifier         = (*provider)(nil)
)

func newProvider(onPod func(*corev1.Pod)) *provider {
	return &provider{onPod: onPod, pods: map[types.NamespacedName]*corev1.Pod{}}
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// CreatePod implements node.PodLifecycleHandler.
func (p *provider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	p.pods[keyOf(pod)] = pod.DeepCopy()
	p.mu.Unlock()
	p.onPod(pod)
	return nil
}

// UpdatePod implements node.PodLifecycleHandler.
func (p *provider) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	updated := pod.DeepCopy()
	if known := p.pods[keyOf(pod)]; known != nil && known.UID == pod.UID {
		updated.Status = known.Status
	}
	p.pods[keyOf(pod)] = updated
	p.mu.Unlock()
	p.onPod(pod)
	return nil
}

// DeletePod implements node.PodLifecycleHandler. The pod stays known until its virtual machine has
// ended.
func (p *provider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	p.onPod(pod)
	return nil
}

// GetPod implements node.PodLifecycleHandler.
func (p *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, ok := p.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, errdefs.AsNotFound(errNoPod)
	}
	return pod.DeepCopy(), nil
}

// GetPodStatus implements node.PodLifecycleHandler.
func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods implements node.PodLifecycleHandler.
func (p *provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*corev1.Pod
	for _, pod := range p.pods {
		all = append(all, pod.DeepCopy())
	}
	return all, nil
}

// NotifyPods implements node.PodNotifier.
func (p *provider) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
}

func (p *provider) setStatus(pod *corev1.Pod, status corev1.PodStatus) {
	p.mu.Lock()
	known := p.pods[keyOf(pod)]
	if known == nil || known.UID != pod.UID {
		known = pod.DeepCopy()
		p.pods[keyOf(pod)] = known
	}
	if ended(known) && !ended(pod) {
		status = known.Status // an ended pod keeps its status
	}
	same := equality.Semantic.DeepEqual(known.Status, status) && equality.Semantic.DeepEqual(pod.Status, status)
	status.DeepCopyInto(&known.Status)
	tell, notify := known.DeepCopy(), p.notify
	p.mu.Unlock()
	if notify != nil && !same {
		notify(tell)
	}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

func (p *provider) ended(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.pods[keyOf(pod)]
	return known != nil && known.UID == pod.UID && ended(known)
}

func (p *provider) forget(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.pods[keyOf(pod)]; known != nil && known.UID == pod.UID {
		delete(p.pods, keyOf(pod))
	}
}
