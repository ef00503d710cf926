// Package macosinstance creates the placeholder pod of each instance, reports how the pod is
// scheduled, and removes the pod when the virtual machine has ended. The agent reports the state of
// the virtual machine.
package macosinstance

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	instanceclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/instance/v1alpha1"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
	imagelisters "macrack.io/macrack/pkg/generated/listers/image/v1alpha1"
	instancelisters "macrack.io/macrack/pkg/generated/listers/instance/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

type reconciler struct {
	clock     clock.PassiveClock
	instances instancelisters.MacOSInstanceLister
	leases    racklisters.MacNodeLeaseLister
	macs      racklisters.MacNodeLister
	images    imagelisters.MacOSImageLister
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
	budgets   policylisters.PodDisruptionBudgetLister

	instanceClient instanceclient.MacOSInstancesGetter
	recordClient   rackclient.AuditRecordsGetter
	podClient      corev1client.PodsGetter
	budgetClient   policyclient.PodDisruptionBudgetsGetter
}

func newReconciler(deps *shared.Dependencies) *reconciler {
	return &reconciler{
		clock:          deps.Clock,
		instances:      deps.MacOSInstances.Lister(),
		leases:         deps.MacNodeLeases.Lister(),
		macs:           deps.MacNodes.Lister(),
		images:         deps.MacOSImages.Lister(),
		nodes:          deps.Nodes.Lister(),
		pods:           deps.Pods.Lister(),
		budgets:        deps.Budgets.Lister(),
		instanceClient: deps.MacRack.InstanceV1alpha1(),
		recordClient:   deps.MacRack.RackV1alpha1(),
		podClient:      deps.Core.CoreV1(),
		budgetClient:   deps.Core.PolicyV1(),
	}
}

func (r *reconciler) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	instance, err := r.instances.MacOSInstances(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	// The report of the Mac delays nothing: statuses are written as patches of their changes.
	var macErr error
	if !rules.InstanceEnded(instance.Status.Phase) && !isNew(instance) {
		macErr = r.syncMacReady(ctx, instance)
	}
	deadline, deadlineErr := r.enforceDeadline(ctx, instance)
	due, err := r.sync(ctx, instance)
	return earliest(due, deadline), errors.Join(macErr, deadlineErr, err)
}

// isNew reports whether the instance has no placeholder pod yet. The first write of its condition
// Scheduled includes MacReady.
func isNew(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.Status.Phase == instancev1alpha1.MacOSInstancePending && instance.Status.PodName == ""
}

// sync takes an instance to the next step of its life.
func (r *reconciler) sync(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (due time.Time, err error) {
	pod, err := r.findPod(instance)
	if err != nil {
		return time.Time{}, err
	}
	switch {
	case rules.InstanceEnded(instance.Status.Phase):
		if err := r.cleanUp(ctx, instance, pod); err != nil {
			return time.Time{}, err
		}
		return r.expire(ctx, instance)
	case isRestored(instance) && !mustStop(instance):
		return time.Time{}, r.restorePod(ctx, instance, pod)
	case instance.Status.MachineID != "":
		// There is, or was, a virtual machine: only the agent knows what becomes of it.
		return time.Time{}, r.syncPod(ctx, instance, pod)
	case mustStop(instance):
		return time.Time{}, r.stop(ctx, instance, pod)
	case instance.Status.PodName == "" || needsPod(instance, pod):
		return time.Time{}, r.createPod(ctx, instance)
	case pod == nil:
		return time.Time{}, r.onPodLost(ctx, instance)
	default:
		podErr := r.syncPod(ctx, instance, pod)
		due, err := r.syncScheduled(ctx, instance, pod)
		return due, errors.Join(podErr, err)
	}
}

// findPod returns the instance's own pod from the cache, or nil.
func (r *reconciler) findPod(instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	if instance.Status.PodName == "" {
		return nil, nil
	}
	pod, err := r.pods.Pods(instance.Namespace).Get(instance.Status.PodName)
	if apierrors.IsNotFound(err) || err == nil && !isPodOf(pod, instance) {
		return nil, nil
	}
	return pod, err
}

// isPodOf reports whether pod is the placeholder of instance. The name is in the instance's status,
// but the pod of an earlier instance may still have it. So a UID must agree until there is a
// virtual machine. After that, the pod is known by its request for a virtual machine, which no
// other pod has; restoreMetadata restores the rest of its metadata.
func isPodOf(pod *corev1.Pod, instance *instancev1alpha1.MacOSInstance) bool {
	return pod.Name == instance.Status.PodName && (instance.Status.MachineID != "" && requestsVM(pod) ||
		metav1.IsControlledBy(pod, instance) || pod.Annotations[rules.AnnotationInstanceUID] == string(instance.UID))
}

func requestsVM(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		_, requested := c.Resources.Limits[rules.ResourceMacOSVM]
		return requested
	})
}

// readPod returns the instance's pod from the server, as the cache may be stale; nil if the pod
// does not exist.
func (r *reconciler) readPod(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	if instance.Status.PodName == "" {
		return nil, nil
	}
	pod, err := r.podClient.Pods(instance.Namespace).Get(ctx, instance.Status.PodName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !isPodOf(pod, instance) {
		return nil, nil
	}
	return pod, err
}
