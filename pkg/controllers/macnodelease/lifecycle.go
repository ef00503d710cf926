package macnodelease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

// Reasons with which instances are asked to stop.
const (
	// StopReasonHeld means that the lease was deleted before its floor.
	StopReasonHeld = "LeaseHeld"
	// StopReasonReleasing means that the lease's floor has passed and its Mac is being emptied.
	StopReasonReleasing = "LeaseReleasing"
)

// askAgain is the delay before another attempt when the server's clock has not reached the floor
// yet.
const askAgain = 15 * time.Second

// lifecycle takes a bound lease to its end. Its keys are leases.
type lifecycle struct {
	now         func() time.Time
	getLease    func(namespace, name string) (*rackv1alpha1.MacNodeLease, error)
	instancesOf func(namespace, leaseName string) ([]*instancev1alpha1.MacOSInstance, error)
	getMac      func(name string) (*rackv1alpha1.MacNode, error)
	getNode     func(name string) (*corev1.Node, error)
	// readNode reads from the server, not from the cache.
	readNode func(ctx context.Context, name string) (*corev1.Node, error)
	stop     func(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason string) error
	// readLease reads from the server, not from the cache.
	readLease   func(ctx context.Context, namespace, name string) (*rackv1alpha1.MacNodeLease, error)
	deleteLease func(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error
	updateState func(ctx context.Context, before, after *rackv1alpha1.MacNodeLease) error
	release     func(ctx context.Context, lease *rackv1alpha1.MacNodeLease, nodeTaints []string) error
	released    func(lease *rackv1alpha1.MacNodeLease)
	expired     func(lease *rackv1alpha1.MacNodeLease)
}

func (l *lifecycle) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	lease, err := l.getLease(namespace, name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	// A failure to stop instances must not delay the conditions, nor the other way round.
	stopErr := l.stopWhatEnds(ctx, lease)
	due, err := l.advance(ctx, lease)
	return due, errors.Join(stopErr, err)
}

func (l *lifecycle) advance(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld:
		if restored, err := l.restoreFloor(ctx, lease); restored || err != nil {
			return time.Time{}, err
		}
		fallthrough
	case rackv1alpha1.MacNodeLeaseReleasing:
		// The report of the Mac delays nothing: statuses are written as patches of their changes.
		err := l.tellOfMac(ctx, lease)
		due, advanceErr := l.advancePhase(ctx, lease)
		return due, errors.Join(err, advanceErr)
	}
	return time.Time{}, nil
}

func (l *lifecycle) advancePhase(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
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
func (l *lifecycle) restoreFloor(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (restored bool, err error) {
	floor := predicates.Floor(lease)
	if stored := lease.Status.EarliestReleaseAt; floor.IsZero() || stored != nil && !stored.Time.Before(floor) {
		return false, nil
	}
	logger := klog.FromContext(ctx).WithValues("lease", klog.KObj(lease), "stored", fmt.Sprint(lease.Status.EarliestReleaseAt), "floor", floor)
	mended := lease.DeepCopy()
	mended.Status.EarliestReleaseAt = &metav1.Time{Time: floor}
	err = l.updateState(ctx, lease, mended)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		logger.Error(err, "Failed to restore the floor of the lease, which is stored too short; the computed floor applies")
		return false, nil
	}
	if err == nil {
		logger.Info("Restored the floor of the lease, which was too short")
	}
	return true, err
}

// tellOfMac keeps the lease's condition MacReady true.
func (l *lifecycle) tellOfMac(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	mac, err := l.getMac(lease.Status.NodeName)
	if err != nil {
		return ignoreNotFound(err)
	}
	return ignoreNotFound(setCondition(ctx, lease, predicates.MacReady(mac), l.now(), l.updateState))
}

// bound deletes a lease whose expireAfter has passed.
func (l *lifecycle) bound(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	expiry := predicates.Expiry(lease)
	if expiry.IsZero() || lease.DeletionTimestamp != nil {
		return time.Time{}, nil
	}
	if l.now().Before(expiry) {
		return expiry, nil
	}
	err := l.deleteLease(ctx, lease)
	for range deletionTries {
		if !apierrors.IsConflict(err) {
			break
		}
		// The lease was changed meanwhile, possibly its expireAfter.
		current, readErr := l.readLease(ctx, lease.Namespace, lease.Name)
		if readErr != nil || current.UID != lease.UID || current.DeletionTimestamp != nil {
			return time.Time{}, ignoreNotFound(readErr)
		}
		if expiry := predicates.Expiry(current); expiry.IsZero() || l.now().Before(expiry) {
			return time.Time{}, nil // the change enqueues the lease again
		}
		lease, err = current, l.deleteLease(ctx, current)
	}
	if err != nil {
		return time.Time{}, ignoreNotFound(err)
	}
	l.expired(lease)
	return time.Time{}, nil
}

// deletionTries is the number of immediate attempts to delete an expired lease while other clients
// keep changing its metadata.
const deletionTries = 20

// stopWhatEnds requests the stop of the instances of a lease that is held or being released.
func (l *lifecycle) stopWhatEnds(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseHeld:
		return l.stopInstances(ctx, lease, StopReasonHeld, func(instance *instancev1alpha1.MacOSInstance) bool {
			return slices.ContainsFunc(lease.Status.Instances, func(slot rackv1alpha1.LeaseSlot) bool {
				return slot.Stop && slot.UID == instance.UID
			})
		})
	case rackv1alpha1.MacNodeLeaseReleasing:
		return l.stopInstances(ctx, lease, StopReasonReleasing, func(*instancev1alpha1.MacOSInstance) bool { return true })
	}
	return nil
}

// held begins the release at the floor.
func (l *lifecycle) held(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	floor := predicates.Floor(lease)
	if rules.FloorPassed(l.now(), floor) {
		releasing := lease.DeepCopy()
		releasing.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		err := l.updateState(ctx, lease, releasing)
		if apierrors.IsForbidden(err) {
			// By the server's clock the floor has not passed. Each attempt is recorded, so wait
			// before the next.
			klog.FromContext(ctx).Info("Release of the lease refused; retrying later", "lease", klog.KObj(lease), "reason", err)
			return l.now().Add(askAgain), nil
		}
		return time.Time{}, err
	}
	return floor, nil
}

// releasing waits until the Mac is empty and scrubbed and its Node has the taint of an unleased
// Mac. Then it releases the Mac from the lease.
func (l *lifecycle) releasing(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (time.Time, error) {
	if floor := predicates.Floor(lease); !rules.FloorPassed(l.now(), floor) {
		return floor, nil
	}
	mac, err := l.getMac(lease.Status.NodeName)
	if err != nil {
		return time.Time{}, err
	}
	node, err := l.getNode(mac.Name)
	if apierrors.IsNotFound(err) {
		node = &corev1.Node{}
	} else if err != nil {
		return time.Time{}, err
	}
	if reason, message := waitsFor(lease, mac, node.Spec.Taints); reason != "" {
		return time.Time{}, l.explain(ctx, lease, reason, message)
	}
	node, err = l.readNode(ctx, mac.Name)
	if err != nil {
		return time.Time{}, ignoreNotFound(err)
	}
	if reason, _ := predicates.BlocksRelease(lease, mac, node.Spec.Taints); reason != "" {
		return time.Time{}, nil // the change of the Node enqueues the lease again
	}
	if err := l.release(ctx, lease, rules.FormatTaints(node.Spec.Taints)); err != nil {
		return time.Time{}, ignoreNotFound(err)
	}
	l.released(lease)
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
			reason, message = scrubbed.Reason, message+", which failed: "+scrubbed.Message
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
	err := setCondition(ctx, lease, metav1.Condition{
		Type: rackv1alpha1.MacNodeLeaseConditionReleased, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}, l.now(), l.updateState)
	return ignoreNotFound(err)
}

// stopInstances requests the stop of the instances of the lease for which isTo is true, unless it
// has been requested.
func (l *lifecycle) stopInstances(ctx context.Context, lease *rackv1alpha1.MacNodeLease, reason string, isTo func(*instancev1alpha1.MacOSInstance) bool) error {
	instances, err := l.instancesOf(lease.Namespace, lease.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, instance := range instances {
		if !predicates.BelongsTo(instance, lease) || rules.InstanceEnded(instance.Status.Phase) || instance.Status.StopRequest != nil || !isTo(instance) {
			continue
		}
		if err := l.stop(ctx, instance, reason); ignoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
