package macnodelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	instanceclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/instance/v1alpha1"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// askAgain is the delay before another attempt when the server's clock has not reached the floor
// yet.
const askAgain = 15 * time.Second

// lifecycle takes a bound lease to its end. Its keys are leases.
type lifecycle struct {
	clock     clock.PassiveClock
	leases    racklisters.MacNodeLeaseLister
	macs      racklisters.MacNodeLister
	nodes     corelisters.NodeLister
	instances instanceIndex

	leaseClient    rackclient.MacNodeLeasesGetter
	instanceClient instanceclient.MacOSInstancesGetter
	nodeClient     corev1client.NodesGetter
	recorder       record.EventRecorder
}

// instanceIndex finds instances in the cache.
type instanceIndex interface {
	InstancesOf(namespace, leaseName string) ([]*instancev1alpha1.MacOSInstance, error)
}

func newLifecycle(deps *shared.Dependencies) *lifecycle {
	return &lifecycle{
		clock:          deps.Clock,
		leases:         deps.MacNodeLeases.Lister(),
		macs:           deps.MacNodes.Lister(),
		nodes:          deps.Nodes.Lister(),
		instances:      deps,
		leaseClient:    deps.MacRack.RackV1alpha1(),
		instanceClient: deps.MacRack.InstanceV1alpha1(),
		nodeClient:     deps.Core.CoreV1(),
		recorder:       deps.Recorder,
	}
}

func (l *lifecycle) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	lease, err := l.leases.MacNodeLeases(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	// A failure to stop instances must not delay the conditions, nor the other way round.
	stopErr := l.stopInstances(ctx, lease)
	due, err := l.sync(ctx, lease)
	return due, errors.Join(stopErr, err)
}

func (l *lifecycle) sync(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld:
		if restored, err := l.restoreFloor(ctx, lease); restored || err != nil {
			return time.Time{}, err
		}
		fallthrough
	case rackv1alpha1.MacNodeLeaseReleasing:
		// The report of the Mac delays nothing: statuses are written as patches of their changes.
		err := l.syncMacReady(ctx, lease)
		due, phaseErr := l.syncPhase(ctx, lease)
		return due, errors.Join(err, phaseErr)
	}
	return time.Time{}, nil
}

func (l *lifecycle) syncPhase(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseBound:
		return l.bound(ctx, lease)
	case rackv1alpha1.MacNodeLeaseHeld:
		return l.held(ctx, lease)
	case rackv1alpha1.MacNodeLeaseReleasing:
		return l.releasing(ctx, lease)
	}
	return time.Time{}, nil
}

// restoreFloor restores a stored floor that is too short or missing. Nothing here relies on it:
// predicates.Floor ignores a stored floor that is too short.
func (l *lifecycle) restoreFloor(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (done bool, err error) {
	floor := predicates.Floor(lease)
	if stored := lease.Status.EarliestReleaseAt; floor.IsZero() || stored != nil && !stored.Time.Before(floor) {
		return false, nil
	}
	logger := klog.FromContext(ctx).WithValues("lease", klog.KObj(lease), "stored", fmt.Sprint(lease.Status.EarliestReleaseAt), "floor", floor)
	restored := lease.DeepCopy()
	restored.Status.EarliestReleaseAt = &metav1.Time{Time: floor}
	_, err = shared.PatchStatus(ctx, l.leaseClient.MacNodeLeases(lease.Namespace), lease, restored)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		logger.Error(err, "Failed to restore the floor of the lease, which is stored too short; the computed floor applies")
		return false, nil
	}
	if err == nil {
		logger.Info("Restored the floor of the lease, which was too short")
	}
	return true, err
}

// syncMacReady writes the lease's condition MacReady.
func (l *lifecycle) syncMacReady(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	mac, err := l.macs.Get(lease.Status.NodeName)
	if err != nil {
		return shared.IgnoreNotFound(err)
	}
	return shared.IgnoreNotFound(setCondition(ctx, l.leaseClient, lease, predicates.MacReady(mac), l.clock.Now()))
}

// bound deletes a lease whose expireAfter has passed.
func (l *lifecycle) bound(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	expiry := predicates.Expiry(lease)
	if expiry.IsZero() || lease.DeletionTimestamp != nil {
		return time.Time{}, nil
	}
	if l.clock.Now().Before(expiry) {
		return expiry, nil
	}
	err := l.delete(ctx, lease)
	for range deletionTries {
		if !apierrors.IsConflict(err) {
			break
		}
		// The lease was changed meanwhile, possibly its expireAfter.
		current, readErr := l.leaseClient.MacNodeLeases(lease.Namespace).Get(ctx, lease.Name, metav1.GetOptions{})
		if readErr != nil || current.UID != lease.UID || current.DeletionTimestamp != nil {
			return time.Time{}, shared.IgnoreNotFound(readErr)
		}
		if expiry := predicates.Expiry(current); expiry.IsZero() || l.clock.Now().Before(expiry) {
			return time.Time{}, nil // the change enqueues the lease again
		}
		lease, err = current, l.delete(ctx, current)
	}
	if err != nil {
		return time.Time{}, shared.IgnoreNotFound(err)
	}
	l.recorder.Eventf(lease, corev1.EventTypeNormal, eventExpired, "deleted %s after the lease was bound, as spec.expireAfter demands", lease.Spec.ExpireAfter)
	return time.Time{}, nil
}

// deletionTries is the number of immediate attempts to delete an expired lease while other clients
// keep changing its metadata.
const deletionTries = 20

// held begins the release at the floor.
func (l *lifecycle) held(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	floor := predicates.Floor(lease)
	if rules.FloorPassed(l.clock.Now(), floor) {
		releasing := lease.DeepCopy()
		releasing.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		_, err := shared.PatchStatus(ctx, l.leaseClient.MacNodeLeases(lease.Namespace), lease, releasing)
		if apierrors.IsForbidden(err) {
			// By the server's clock the floor has not passed. Each attempt is recorded, so wait
			// before the next.
			klog.FromContext(ctx).Info("Release of the lease refused; retrying later", "lease", klog.KObj(lease), "reason", err)
			return l.clock.Now().Add(askAgain), nil
		}
		return time.Time{}, err
	}
	return floor, nil
}

// releasing waits until the Mac is empty and scrubbed and its Node has the taint of an unleased
// Mac. Then it releases the Mac from the lease.
func (l *lifecycle) releasing(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	if floor := predicates.Floor(lease); !rules.FloorPassed(l.clock.Now(), floor) {
		return floor, nil
	}
	mac, err := l.macs.Get(lease.Status.NodeName)
	if err != nil {
		return time.Time{}, err
	}
	node, err := l.nodes.Get(mac.Name)
	if apierrors.IsNotFound(err) {
		node = &corev1.Node{}
	} else if err != nil {
		return time.Time{}, err
	}
	if reason, message := waitsFor(lease, mac, node.Spec.Taints); reason != "" {
		return time.Time{}, l.explain(ctx, lease, reason, message)
	}
	node, err = l.nodeClient.Nodes().Get(ctx, mac.Name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, shared.IgnoreNotFound(err)
	}
	if reason, _ := predicates.BlocksRelease(lease, mac, node.Spec.Taints); reason != "" {
		return time.Time{}, nil // the change of the Node enqueues the lease again
	}
	if err := l.release(ctx, lease, rules.FormatTaints(node.Spec.Taints)); err != nil {
		return time.Time{}, shared.IgnoreNotFound(err)
	}
	l.recorder.Eventf(lease, corev1.EventTypeNormal, eventReleased, "Mac %s emptied, scrubbed and released", lease.Status.SerialNumber)
	return time.Time{}, nil
}

// waitsFor returns what blocks the release of a lease. The reason is empty if nothing does.
func waitsFor(lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode, taints []corev1.Taint) (reason, message string) {
	reason, message = predicates.BlocksRelease(lease, mac, taints)
	switch reason {
	case rules.ReasonStoppingInstances:
	case rules.ReasonScrubbing:
		scrubbed := meta.FindStatusCondition(mac.Status.Conditions, rackv1alpha1.MacNodeScrubbed)
		if scrubbed != nil && scrubbed.Status == metav1.ConditionFalse && scrubbed.Reason == rackv1alpha1.ReasonScrubFailed {
			reason, message = scrubbed.Reason, message+"; the last scrub failed: "+scrubbed.Message
		}
	default:
		return reason, message
	}
	if ready := meta.FindStatusCondition(mac.Status.Conditions, rackv1alpha1.MacNodeReady); ready != nil && ready.Status == metav1.ConditionFalse {
		reason, message = "MacOffline", fmt.Sprintf("%s; Mac %s is offline (%s)", message, mac.Spec.SerialNumber, ready.Message)
	}
	return reason, message
}

// explain sets the lease's condition Released to what blocks the release.
func (l *lifecycle) explain(ctx context.Context, lease *rackv1alpha1.MacNodeLease, reason, message string) error {
	err := setCondition(ctx, l.leaseClient, lease, metav1.Condition{
		Type: rackv1alpha1.MacNodeLeaseConditionReleased, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}, l.clock.Now())
	return shared.IgnoreNotFound(err)
}

// delete deletes a lease. The resourceVersion guards against a change of expireAfter, because a
// deletion cannot be undone.
func (l *lifecycle) delete(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	return l.leaseClient.MacNodeLeases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
}

func (l *lifecycle) release(ctx context.Context, lease *rackv1alpha1.MacNodeLease, nodeTaints []string) error {
	release := &rackv1alpha1.MacNodeLeaseRelease{ObjectMeta: metav1.ObjectMeta{UID: lease.UID}, NodeTaints: nodeTaints}
	_, err := l.leaseClient.MacNodeLeases(lease.Namespace).Release(ctx, lease.Name, release, shared.CreateOptions)
	return err
}
