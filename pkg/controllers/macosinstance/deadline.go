package macosinstance

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// enforceDeadline requests the stop of an instance that has reached its deadline. It returns the
// deadline of one that has not.
func (r *reconciler) enforceDeadline(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (due time.Time, err error) {
	if rules.InstanceEnded(instance.Status.Phase) || mustStop(instance) {
		return time.Time{}, nil
	}
	deadline := rules.InstanceDeadline(instance.Status.StartedAt, instance.Status.StartGrantedAt, instance.Spec.ActiveDeadlineSeconds)
	if !rules.IsDue(deadline, r.clock.Now()) {
		return deadline, nil
	}
	stop := &instancev1alpha1.MacOSInstanceStop{ObjectMeta: metav1.ObjectMeta{UID: instance.UID}, Reason: instancev1alpha1.ReasonDeadlineExceeded}
	_, err = r.instanceClient.MacOSInstances(instance.Namespace).Stop(ctx, instance.Name, stop, shared.CreateOptions)
	if err == nil {
		klog.FromContext(ctx).Info("Instance stopped at its deadline", "instance", klog.KObj(instance), "deadline", deadline)
	}
	return time.Time{}, shared.IgnoreNotFound(err)
}

// expire deletes an instance whose time after its end has passed. It returns the time at which an
// instance expires later.
func (r *reconciler) expire(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (due time.Time, err error) {
	if instance.DeletionTimestamp != nil {
		return time.Time{}, nil
	}
	expiry := rules.InstanceExpiry(instance.Status.StoppedAt, instance.Spec.TTLSecondsAfterFinished)
	if !rules.IsDue(expiry, r.clock.Now()) {
		return expiry, nil
	}
	klog.FromContext(ctx).Info("Deleting expired instance", "instance", klog.KObj(instance), "stoppedAt", instance.Status.StoppedAt)
	err = r.instanceClient.MacOSInstances(instance.Namespace).Delete(ctx, instance.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &instance.UID},
	})
	return time.Time{}, shared.IgnoreNotFound(err)
}

// earliest returns the earlier of two times; the zero time means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
