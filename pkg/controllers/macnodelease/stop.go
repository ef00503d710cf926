package macnodelease

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// Reasons for which instances are stopped.
const (
	// StopReasonHeld means that the lease was deleted before its floor.
	StopReasonHeld = "LeaseHeld"
	// StopReasonReleasing means that the lease's floor has passed and its Mac is being emptied.
	StopReasonReleasing = "LeaseReleasing"
)

// stopInstances requests the stop of the instances that a lease must not run any longer.
func (l *lifecycle) stopInstances(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	if lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld && lease.Status.Phase != rackv1alpha1.MacNodeLeaseReleasing {
		return nil
	}
	instances, err := l.instances.InstancesOf(lease.Namespace, lease.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, instance := range instances {
		if reason := stopReason(lease, instance); reason != "" {
			errs = append(errs, l.stop(ctx, instance, reason))
		}
	}
	return errors.Join(errs...)
}

// stopReason returns the reason to stop an instance of the lease. It is empty if the instance may
// run, has ended, or is already asked to stop.
func stopReason(lease *rackv1alpha1.MacNodeLease, instance *instancev1alpha1.MacOSInstance) string {
	if !predicates.BelongsTo(instance, lease) || rules.InstanceEnded(instance.Status.Phase) || instance.Status.StopRequest != nil {
		return ""
	}
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseHeld:
		marked := slices.ContainsFunc(lease.Status.Instances, func(slot rackv1alpha1.LeaseSlot) bool {
			return slot.Stop && slot.UID == instance.UID
		})
		if marked {
			return StopReasonHeld
		}
	case rackv1alpha1.MacNodeLeaseReleasing:
		return StopReasonReleasing
	}
	return ""
}

func (l *lifecycle) stop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason string) error {
	stop := &instancev1alpha1.MacOSInstanceStop{ObjectMeta: metav1.ObjectMeta{UID: instance.UID}, Reason: reason}
	_, err := l.instanceClient.MacOSInstances(instance.Namespace).Stop(ctx, instance.Name, stop, shared.CreateOptions)
	return shared.IgnoreNotFound(err)
}
